// `npm run bench -- streams [--streams N]`: the server's memory for each idle stream of events, and the time of a
// request meanwhile. Ends with 1 if a stream takes 40 kB or more.
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import http from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { startService } from '../support/service.ts'

const limit_kB = 40
const position = process.argv.indexOf('--streams')
const count = position > 0 ? Number(process.argv[position + 1]) : 5000

const service = await startService({
  TUNERY_LOG_LEVEL: 'error',
  // An account may hold a quarter of the connections.
  TUNERY_MAX_CONNECTIONS: String(8 * count),
})
const headers = { authorization: `Bearer ${service.key}` }
const resident_kB = () => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${service.pid}/status`, 'utf8'))![1])

function open(id: string): Promise<http.IncomingMessage> {
  return new Promise((resolve, reject) => {
    http
      .get(`${service.url}/fine-tuning/jobs/${id}/events`, { headers, agent: false }, (response) => {
        response.resume()
        resolve(response)
      })
      .on('error', reject)
  })
}

async function p50OfAList(): Promise<number> {
  const times: number[] = []
  for (let index = 0; index < 200; index++) {
    const began = performance.now()
    await service.api('GET', '/keys')
    times.push(performance.now() - began)
  }
  return times.sort((a, b) => a - b)[100]!
}

/**
 * Through the inspector, which SIGUSR1 opens on its own port. What was freed is returned to the system within seconds.
 */
async function collectGarbage(): Promise<void> {
  process.kill(service.pid, 'SIGUSR1')
  await sleep(1000)
  const [target] = (await (await fetch('http://127.0.0.1:9229/json/list')).json()) as { webSocketDebuggerUrl: string }[]
  const socket = new WebSocket(target!.webSocketDebuggerUrl)
  await once(socket, 'open')
  for (let id = 1; id <= 4; id++) {
    socket.send(JSON.stringify({ id, method: 'HeapProfiler.collectGarbage' }))
    await once(socket, 'message')
    await sleep(1000)
  }
  socket.close()
}

try {
  // A stream of a paused job stays open and has nothing to say.
  const id = await service.createJob()
  await service.api('POST', `/fine-tuning/jobs/${id}/pause`)
  // What the first streams load is not counted.
  const streams = await Promise.all(Array.from({ length: 100 }, () => open(id)))
  const before_ms = await p50OfAList()
  await collectGarbage()
  const before_kB = resident_kB()
  for (let index = 0; index < count; index += 100)
    streams.push(...(await Promise.all(Array.from({ length: 100 }, () => open(id)))))
  await sleep(5000)
  const fresh_kB = (resident_kB() - before_kB) / count
  const open_ms = await p50OfAList()
  await collectGarbage()
  const each_kB = (resident_kB() - before_kB) / count
  console.log(
    `${count} idle streams: ${each_kB.toFixed(1)} kB each (at most ${limit_kB}); ${fresh_kB.toFixed(1)} kB before ` +
      'garbage was collected',
  )
  console.log(`GET /keys, p50: ${before_ms.toFixed(2)} ms with 100 streams, ${open_ms.toFixed(2)} ms with all`)
  for (const stream of streams) stream.destroy()
  process.exitCode = each_kB < limit_kB ? 0 : 1
} finally {
  await service.stop()
}
