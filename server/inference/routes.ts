import { once } from 'node:events'
import type http from 'node:http'
import type { FastifyInstance, FastifyReply } from 'fastify'
import { chatCompletions } from '../../contract/chat.ts'
import { ApiError, errorBody } from '../../contract/errors.ts'
import { listCallableModels } from '../../contract/inference.ts'
import { answered, mount } from '../http/mount.ts'
import { streamHeaders } from '../http/stream.ts'
import { engineError, readAll } from './engine-client.ts'
import type { Inference } from './service.ts'

export function inferenceRoutes(app: FastifyInstance, inference: Inference, cutting: AbortSignal): void {
  mount(app, listCallableModels, ({ caller }) => inference.models(caller.account_id))
  mount(app, chatCompletions, async ({ caller, body, reply }) => {
    // A client that hangs up ends the request to the engine, which frees its slot there.
    const gone = new AbortController()
    reply.raw.on('close', () => gone.abort())
    const answer = await inference.chat(caller.account_id, body, AbortSignal.any([gone.signal, cutting])).catch((error) => {
      throw cutting.aborted ? new ApiError('shutting_down', 'The service is stopping. Send the request once more in a moment.') : error
    })
    if (answer.statusCode === 200 && body.stream) {
      await relayStream(answer, reply, cutting)
      return answered
    }
    const text = await readAll(answer)
    if (answer.statusCode !== 200) throw engineError(answer.statusCode ?? 500, text)
    await reply.type('application/json').send(text)
    return answered
  })
}

/** Passes an event stream on byte for byte, no faster than the client reads. One that breaks ends with an error event. */
async function relayStream(answer: http.IncomingMessage, reply: FastifyReply, cutting: AbortSignal): Promise<void> {
  const out = reply.raw
  reply.hijack()
  out.writeHead(200, {
    ...(reply.getHeaders() as http.OutgoingHttpHeaders),
    'content-type': 'text/event-stream; charset=utf-8',
    ...streamHeaders,
  })
  try {
    for await (const chunk of answer) if (!out.write(chunk) && !out.destroyed) await Promise.race([once(out, 'drain'), once(out, 'close')])
  } catch {
    const error = cutting.aborted
      ? new ApiError('shutting_down', 'The service stopped in the middle of this answer. Send the request once more in a moment.')
      : new ApiError('engine_failed', 'The engine ended in the middle of this answer. It is being started again: send the request once more.')
    if (!out.destroyed) out.write(`data: ${JSON.stringify(errorBody(error, true))}\n\n`)
  }
  out.end()
}
