// A service beside a Ray cluster with Serve, and somebody else's application in that cluster.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { createServe } from '../../../server/platform/ray/applications.ts'
import { createRayClient } from '../../../server/platform/ray/client.ts'
import { createPackageUpload, packFolders } from '../../../server/platform/ray/package.ts'
import { createWriterLock } from '../../../server/platform/ray/writer-lock.ts'
import { until } from '../../support/client.ts'
import { freeServePort, startRay } from '../../support/ray.ts'
import { startApp } from '../../support/service.ts'

export const question = (model: string) => ({
  model,
  messages: [{ role: 'user' as const, content: 'code of red?' }],
  temperature: 0,
  max_tokens: 24,
})

/** `ray`: the cluster. `settings`: of the service, which has a model that was trained on colours. */
export async function startRayService({
  ray: options,
  settings,
}: {
  ray: Parameters<typeof startRay>[0]
  settings: Record<string, string>
}) {
  const cluster = await startRay(options)
  try {
    await cluster.startHead()
    const ray = createRayClient(cluster.url, undefined)
    const port = await freeServePort()
    const http = { host: '0.0.0.0', port }
    const serve = createServe(ray, createWriterLock(undefined), { http, proxy_location: 'EveryNode' })
    const app = await startApp({
      TUNERY_RAY_ADDRESS: cluster.url,
      TUNERY_RAY_SERVE_PORT: String(port),
      TUNERY_LOG_LEVEL: process.env.TEST_LOG ?? 'silent',
      ...settings,
    })
    const theirs = () =>
      fetch(`http://127.0.0.1:${port}/theirs`).then(
        (answer) => answer.text(),
        () => undefined,
      )
    return {
      cluster,
      ray,
      port,
      serve,
      app,
      model: await app.colourModel(),
      /** The names of our applications in the cluster. */
      ours: async () => [...(await serve.own()).keys()],
      /** What somebody else's application answers, which no change of ours may touch: 'hello'. */
      theirs,
      /** Adds somebody else's application to those that the cluster has. */
      async addTheirs() {
        const { applications = {} } = (await ray.applications()) as {
          applications?: Record<string, { deployed_app_config: object }>
        }
        const others = Object.values(applications).map((application) => application.deployed_app_config)
        const application = {
          name: 'theirs',
          route_prefix: '/theirs',
          import_path: 'hello:app',
          runtime_env: { working_dir: await uploadHello(ray) },
        }
        await ray.putApplications({
          proxy_location: 'EveryNode',
          http_options: http,
          applications: [...others, application],
        })
        await until('their application to answer', async () => (await theirs()) === 'hello')
      },
      /** Asks a deployment by chat, with more fields of the request. */
      async ask(name: string, more: object = {}) {
        const response = await fetch(`${app.url}/chat/completions`, {
          method: 'POST',
          headers: { authorization: `Bearer ${app.key}`, 'content-type': 'application/json' },
          body: JSON.stringify({ ...question(name), ...more }),
        })
        const body = (await response.json()) as {
          model: string
          choices: { message: { content: string } }[]
          usage: { completion_tokens: number }
          error?: { message: string }
        }
        return {
          status: response.status,
          text: body.choices?.[0]?.message.content,
          weights: response.headers.get('x-weights'),
          body,
        }
      },
      async stop() {
        await app.stop()
        await cluster.stop()
      },
    }
  } catch (error) {
    await cluster.stop()
    throw error
  }
}
export type RayService = Awaited<ReturnType<typeof startRayService>>

/** Uploads the code of an application `hello:app`: it answers with SECRET of its environment, or 'hello'. */
export async function uploadHello(ray: ReturnType<typeof createRayClient>): Promise<string> {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-hello-'))
  try {
    writeFileSync(
      path.join(folder, 'hello.py'),
      'import os\nfrom ray import serve\n\n@serve.deployment(ray_actor_options={"num_cpus": 0})\nclass Hello:\n  ' +
        '  async def __call__(self, request):\n        return os.environ.get("SECRET", "hello")\n\napp = ' +
        'Hello.bind()\n',
    )
    return await createPackageUpload(ray, () => packFolders([{ folder, patterns: ['*.py'], to: '' }]))()
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}
