// Load generator of one measurement, in its own process so that it does not slow what is measured: clients that
// take requests from a common list, over plain node:http. Reads a Job on stdin, writes its Timing on stdout.
import http from 'node:http'
import type { Job, RequestTiming } from './job.ts'

const job = JSON.parse(await new Response(process.stdin as never).text()) as Job
const url = job.url ? new URL(job.url) : undefined
// No limit on sockets: with one, a request may wait for a socket that the server is closing, and fail with it.
const agent = new http.Agent({ keepAlive: job.keepAlive })
const bodies = job.bodies.map((body) => Buffer.from(JSON.stringify(body)))
const started = performance.now()
const sinceStart = () => Math.round((performance.now() - started) * 1000) / 1000

/** Parses events only until the first one with text; later chunks are only timed, which costs almost nothing. */
function follow(timing: RequestTiming) {
  let text = ''
  let open = true
  return (chunk: Buffer) => {
    const now = sinceStart()
    if (open) {
      text += chunk.toString('latin1')
      const events = text.split('\n\n')
      for (const event of events.slice(0, -1)) {
        if (!event.startsWith('data: {')) continue
        const { choices, error } = JSON.parse(event.slice(6))
        if (error) timing.error = error.message
        const delta = choices?.[0]?.delta?.content || choices?.[0]?.delta?.reasoning_content || choices?.[0]?.text
        if (delta && open) {
          timing.first_ms = now
          open = false
        }
      }
      if (open) text = events.at(-1)!
      else timing.tail = text
    } else {
      timing.arrivals_ms.push(now)
      timing.tail = (timing.tail + chunk.toString('latin1')).slice(-3000)
    }
  }
}

function send(body: Buffer, index: number): Promise<RequestTiming> {
  const timing: RequestTiming = {
    index,
    sent_ms: sinceStart(),
    first_ms: null,
    ended_ms: Number.NaN,
    arrivals_ms: [],
    tail: '',
    tokens: 0,
  }
  return new Promise((resolve, reject) => {
    const headers = { 'content-type': 'application/json', 'content-length': body.length, ...job.headers }
    const target = url ? { host: url.hostname, port: url.port } : { socketPath: job.socket }
    const request = http.request({ ...target, path: job.path, method: 'POST', agent, headers }, (response) => {
      const streamed = String(response.headers['content-type']).startsWith('text/event-stream')
      const gather = (chunk: Buffer) => {
        timing.tail += chunk.toString('latin1')
      }
      const read = streamed ? follow(timing) : gather
      response.on('data', read)
      response.on('error', reject)
      response.on('end', () => {
        timing.ended_ms = sinceStart()
        if (response.statusCode !== 200) timing.error = `${response.statusCode}: ${timing.tail.slice(0, 500)}`
        if (!streamed) timing.first_ms = timing.ended_ms
        timing.tokens = Number(/"completion_tokens":\s*(\d+)/.exec(timing.tail)?.[1] ?? 0)
        timing.tail = ''
        resolve(timing)
      })
    })
    request.setNoDelay(true)
    request.on('error', (error: NodeJS.ErrnoException) => {
      // A server may close a keep-alive connection just as it is reused: retry, as this is not part of its speed.
      if (error.code === 'ECONNRESET' && request.reusedSocket && timing.tail === '')
        send(body, index).then(resolve, reject)
      else reject(error)
    })
    request.end(body)
  })
}

let next = 0
const timings: RequestTiming[] = []
const until = job.seconds ? job.seconds * 1000 : Number.POSITIVE_INFINITY
await Promise.all(
  Array.from({ length: job.clients }, async () => {
    while (sinceStart() < until && (job.seconds || next < bodies.length)) {
      const index = next++
      const timing = await send(bodies[index % bodies.length]!, index)
      timings.push(timing)
      if (timing.error) throw new Error(timing.error)
    }
  }),
).catch((error: Error) => {
  console.error(error.message)
  process.exit(1)
})
process.stdout.write(JSON.stringify({ wall_ms: sinceStart(), requests: timings }))
agent.destroy()
