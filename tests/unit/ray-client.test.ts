// The client of Ray's REST API against servers that are no Ray, or none that answers.
import assert from 'node:assert/strict'
import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { test } from 'node:test'
import { createRayClient, RayAway, type RayClient, RayRefused } from '../../server/platform/ray/client.ts'
import { full } from '../support/full.ts'

const token = 'the-token-of-a-cluster'

async function withServer(answer: (response: ServerResponse) => void, work: (ray: RayClient) => Promise<void>) {
  const server = createServer((_request, response) => answer(response)).listen(0, '127.0.0.1')
  await new Promise((resolve) => server.once('listening', resolve))
  const { port } = server.address() as AddressInfo
  try {
    await work(createRayClient(`http://127.0.0.1:${port}`, token, 100))
  } finally {
    server.closeAllConnections()
    server.close()
  }
}
const text = (status: number, body: string) => (response: ServerResponse) => void response.writeHead(status).end(body)

for (const [title, answer, message] of [
  ['a page', text(200, '<html>Welcome</html>'), /no JSON.*TUNERY_RAY_ADDRESS/],
  ['a job of another kind', text(200, '{"status": "DREAMING"}'), /a way that this version does not know/],
  ['a page that is not found', text(404, 'default backend - 404'), /404: TUNERY_RAY_ADDRESS/],
  ['a way to sign in', text(302, ''), /302: TUNERY_RAY_ADDRESS/],
  ['a refusal of the token', text(401, `${token} is wrong`), /refuses TUNERY_RAY_TOKEN/],
  ['a head that starts', text(500, 'Traceback\nGCS is not ready'), /500: GCS is not ready/],
  [
    'half an answer',
    (response: ServerResponse) => {
      response.writeHead(200, { 'content-length': 100 }).write('{"status"')
      setImmediate(() => response.destroy())
    },
    /does not answer/,
  ],
] as const)
  test(`${title} says nothing of a job: the cluster is away, and the token is not told`, () =>
    withServer(answer, (ray) =>
      assert.rejects(
        ray.job('tunery-job_1-1'),
        (error) => error instanceof RayAway && message.test(error.message) && !error.message.includes(token),
      ),
    ))

test('a server that never answers is away', full, () =>
  withServer(
    () => {},
    (ray) => assert.rejects(ray.job('tunery-job_1-1'), RayAway),
  ),
)

test('a job that Ray does not know is none; what it refuses is told', async () => {
  await withServer(text(404, 'Job tunery-job_1-1 does not exist'), async (ray) => {
    assert.equal(await ray.job('tunery-job_1-1'), undefined)
    await ray.stop('tunery-job_1-1')
    assert.equal(await ray.hasPackage('a.zip'), false)
  })
  await withServer(text(400, 'Traceback\nentrypoint_num_cpus is negative'), (ray) =>
    assert.rejects(
      ray.putApplications({}),
      (error) =>
        error instanceof RayRefused && error.status === 400 && error.message === 'entrypoint_num_cpus is negative',
    ),
  )
})
