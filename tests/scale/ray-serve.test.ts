// Deployments on a real Ray Serve: the writer of its applications beside somebody else's, and our engine as replicas on
// two machines behind our gateway, one of which is killed.
import assert from 'node:assert/strict'
import { createReadStream } from 'node:fs'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import path from 'node:path'
import { after, before, test } from 'node:test'
import OpenAI from 'openai'
import { type Application, ApplicationTaken, createServe, type Serve } from '../../server/platform/ray/applications.ts'
import { createRayClient, type RayClient } from '../../server/platform/ray/client.ts'
import { engineApplication, packEngine } from '../../server/platform/ray/engine-application.ts'
import { createPackageUpload } from '../../server/platform/ray/package.ts'
import { createWriterLock } from '../../server/platform/ray/writer-lock.ts'
import { hashFile } from '../../server/platform/storage/durable-files.ts'
import { until } from '../support/client.ts'
import { postgresTest, startPostgres } from '../support/postgres.ts'
import { freeServePort, type RayCluster, type RayNode, rayTest, startRay } from '../support/ray.ts'
import { startApp, type TestApp } from '../support/service.ts'
import { tiny, tinyModelsDir } from '../support/tiny.ts'
import { uploadHello } from './support/ray-service.ts'

const token = 'a-token-of-the-deployment'
let cluster: RayCluster
const nodes: RayNode[] = []
let ray: RayClient
let port: number
let files: http.Server
let foreign: { working_dir: string }

const options = () => ({ http: { host: '127.0.0.1', port }, proxy_location: 'HeadOnly' as const })

before(async () => {
  if (rayTest.skip) return
  cluster = await startRay()
  await cluster.startHead()
  for (let index = 0; index < 2; index++) nodes.push(await cluster.addNode())
  ray = createRayClient(cluster.url, undefined)
  port = await freeServePort()
  const gguf = path.join(tinyModelsDir(), tiny, 'model.gguf')
  files = http.createServer((_request, response) => createReadStream(gguf).pipe(response)).listen(0, '127.0.0.1')
  // Somebody else's application, with a secret in its environment.
  foreign = { working_dir: await uploadHello(ray) }
})
after(async () => {
  files?.close()
  await cluster?.stop()
})

const hello = (name: string): Application => ({
  name,
  route_prefix: `/${name}`,
  import_path: 'hello:app',
  runtime_env: { ...foreign, env_vars: { SECRET: `of ${name}` } },
})
const answerOf = async (name: string) =>
  await fetch(`http://127.0.0.1:${port}/${name}`).then(
    (answer) => answer.text(),
    () => undefined,
  )

test('writers of several servers change their own applications at once, and nobody loses one', {
  skip: rayTest.skip || postgresTest.skip,
}, async () => {
  const postgres = await startPostgres()
  try {
    await ray.putApplications({ ...options(), http_options: options().http, applications: [hello('theirs')] })
    await until('their application to answer', async () => (await answerOf('theirs')) === 'of theirs')
    // Each as in its own server process: the lock is Postgres'.
    const writers = [1, 2].map(() => createServe(ray, createWriterLock(postgres.url), options()))
    const names = (writer: number) => [1, 2].map((n) => `tunery-${writer}-${n}`)
    await Promise.all(
      writers.flatMap((serve, writer) =>
        names(writer).map((name) => serve.change((applications) => void applications.set(name, hello(name)))),
      ),
    )
    const all = [...names(0), ...names(1)]
    await until('all to run', async () => {
      const applications = await writers[0]!.own()
      return all.every((name) => applications.get(name)?.status === 'RUNNING')
    })
    assert.equal(await answerOf('theirs'), 'of theirs', 'with its secret')
    await Promise.all(
      writers.map((serve, writer) => serve.change((applications) => void applications.delete(names(writer)[0]!))),
    )
    await until('two to be gone', async () => (await writers[0]!.own()).size === 2)
    assert.deepEqual([...(await writers[1]!.own()).keys()].sort(), ['tunery-0-2', 'tunery-1-2'])
    assert.equal(await answerOf('theirs'), 'of theirs')
    await assert.rejects(
      writers[0]!.change(
        (applications) => void applications.set('tunery-x', { ...hello('tunery-x'), route_prefix: '/theirs' }),
      ),
      ApplicationTaken,
    )
    await writers[0]!.change((applications) => applications.clear())
    await until('ours to be gone', async () => (await writers[0]!.own()).size === 0)
    assert.equal(await answerOf('theirs'), 'of theirs')
  } finally {
    await postgres.stop()
  }
})

test(
  'our engine as replicas on two machines: the gateway streams, and continues when one is killed',
  rayTest,
  async () => {
    const serve: Serve = createServe(ray, createWriterLock(undefined), options())
    const upload = createPackageUpload(ray, packEngine)
    const gguf = path.join(tinyModelsDir(), tiny, 'model.gguf')
    const application = engineApplication({
      id: 'colours',
      working_dir: await upload(),
      base: {
        name: tiny,
        url: `http://127.0.0.1:${(files.address() as AddressInfo).port}/`,
        sha256: await hashFile(gguf),
      },
      adapters: [],
      policy: {
        min_replicas: 2,
        max_replicas: 2,
        target_requests_per_replica: 8,
        scale_up_cooldown_ms: 1000,
        scale_down_cooldown_ms: 60_000,
      },
      cores: 1,
      node: process.execPath,
      token,
    })
    await serve.change((applications) => void applications.set(application.name, application))
    await until('it to run', async () => {
      const state = (await serve.own()).get(application.name)
      assert.ok(!/FAILED/.test(state?.status ?? ''), state?.message)
      return state?.status === 'RUNNING'
    })
    assert.ok(
      nodes.every((node) => cluster.processes(/engine\/main\.ts/, node).length === 1),
      'an engine on each machine',
    )
    const url = `http://127.0.0.1:${port}${application.route_prefix}`
    assert.equal((await fetch(`${url}/v1/models`)).status, 401, 'not without its token')

    const ask = (app: TestApp) => {
      const openai = new OpenAI({ baseURL: app.url, apiKey: app.key, maxRetries: 8 })
      const request = {
        model: tiny,
        messages: [{ role: 'user' as const, content: 'code of red?' }],
        temperature: 0,
        max_tokens: 24,
      }
      return {
        whole: async () => (await openai.chat.completions.create(request)).choices[0]!.message.content!,
        async streamed() {
          let text = ''
          let chunks = 0
          for await (const chunk of await openai.chat.completions.create({ ...request, stream: true })) {
            text += chunk.choices[0]?.delta.content ?? ''
            chunks++
          }
          assert.ok(chunks > 3, 'in pieces')
          return text
        },
      }
    }
    const here = await startApp()
    const expected = await ask(here).whole().finally(here.stop)
    const upstreams = [{ model: tiny, url, kind: 'openai', api_key: token }]
    const app = await startApp({ TUNERY_UPSTREAMS: JSON.stringify(upstreams) })
    try {
      assert.equal(await ask(app).whole(), expected, 'as this machine’s engine')
      assert.equal(await ask(app).streamed(), expected)

      let answered = 0
      let stopped = false
      const loop = async () => {
        while (!stopped) {
          assert.equal(await ask(app).whole(), expected)
          answered++
        }
      }
      const loops = Promise.all(Array.from({ length: 4 }, loop))
      await until('requests to be answered', () => answered > 10)
      await nodes[0]!.kill()
      const killed_at = answered
      await until('requests to continue', () => answered > killed_at + 40)
      nodes[0] = await cluster.addNode()
      await until('an engine on the new machine', () => cluster.processes(/engine\/main\.ts/, nodes[0]).length === 1)
      const restored_at = answered
      await until('requests to continue', () => answered > restored_at + 40)
      stopped = true
      await loops
    } finally {
      await app.stop()
    }
    await serve.change((applications) => void applications.delete(application.name))
    await until('the engines to end', () => cluster.processes(/engine\/main\.ts/).length === 0)
  },
)
