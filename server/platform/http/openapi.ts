import { once } from 'node:events'
import { Worker } from 'node:worker_threads'
import type { FastifyInstance } from 'fastify'
import type { Description } from './openapi-thread.ts'

/** Serves OpenAPI 3.0 at /v1/openapi.json. The dashboard's page at /docs shows it. */
export function describeApi(app: FastifyInstance, version: string): void {
  let description: Promise<Description> | undefined
  /** Made once, in a thread, when it is first asked for. */
  const get = () => {
    description ??= makeInThread(version).catch((error) => {
      description = undefined
      throw error
    })
    return description
  }
  app.get('/v1/openapi.json', { schema: { hide: true } }, async (request, reply) => {
    const { text, compressed } = await get()
    reply.type('application/json; charset=utf-8').header('vary', 'accept-encoding')
    if (!/\bgzip\b/.test(String(request.headers['accept-encoding'] ?? ''))) return reply.send(Buffer.from(text))
    return reply.header('content-encoding', 'gzip').send(Buffer.from(compressed))
  })
}

async function makeInThread(version: string): Promise<Description> {
  const thread = new Worker(new URL('./openapi-thread.ts', import.meta.url), { workerData: version })
  thread.unref()
  const [description] = await once(thread, 'message')
  await thread.terminate()
  return description as Description
}
