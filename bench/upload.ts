// Uploads 1 GB to the service and to a bare Node server that writes and hashes the same body: MB/s of both, and the
// service's memory growth. `npm run bench -- upload [MB] [turns]`
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, createReadStream, mkdtempSync, openSync, readFileSync, rmSync, statSync, writeSync } from 'node:fs'
import http from 'node:http'
import os from 'node:os'
import path from 'node:path'
import { startService } from './support/service.ts'

const [megabytes = 1000, turns = 3] = process.argv.slice(2).map(Number)
const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-bench-'))

/** Rows of some hundred bytes, each different. */
function makeRows(file: string): void {
  const fd = openSync(file, 'w')
  const words = 'The quick brown fox jumps over the lazy dog and asks where the next train leaves from. '.repeat(3)
  let row = 0
  for (let bytes = 0; bytes < megabytes * 1e6; ) {
    const lines: string[] = []
    for (let i = 0; i < 2000; i++, row++)
      lines.push(
        JSON.stringify({
          messages: [
            { role: 'user', content: `Question ${row}: ${words}` },
            { role: 'assistant', content: `Answer ${row * 7}. ${words}` },
          ],
        }),
      )
    const text = `${lines.join('\n')}\n`
    bytes += writeSync(fd, text)
  }
  closeSync(fd)
}

const residentMb = (pid: number) =>
  Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))![1]) / 1000

async function upload(url: string, file: string, headers: Record<string, string>): Promise<number> {
  const boundary = 'bench'
  const head =
    `--${boundary}\r\nContent-Disposition: form-data; name="file"; filename="rows.jsonl"\r\n` +
    'Content-Type: application/octet-stream\r\n\r\n'
  const tail = `\r\n--${boundary}--\r\n`
  const size = statSync(file).size
  const started = performance.now()
  const request = http.request(url, {
    method: 'POST',
    headers: {
      'content-type': `multipart/form-data; boundary=${boundary}`,
      'content-length': head.length + size + tail.length,
      ...headers,
    },
  })
  request.write(head)
  for await (const chunk of createReadStream(file, { highWaterMark: 1 << 20 }))
    if (!request.write(chunk)) await once(request, 'drain')
  request.end(tail)
  const [response] = (await once(request, 'response')) as [http.IncomingMessage]
  const text = (await response.toArray()).join('')
  if (response.statusCode !== 201) throw new Error(`${response.statusCode}: ${text}`)
  return size / 1e6 / ((performance.now() - started) / 1000)
}

/** Flushes the disk, so that one side's writes do not slow the other's measurement. */
const settleDisk = () => execFileSync('sync')

const median = (values: number[]) => values.toSorted((a, b) => a - b)[values.length >> 1]!

async function main() {
  const file = path.join(folder, 'rows.jsonl')
  makeRows(file)
  const bare = spawn(process.execPath, [path.join(import.meta.dirname, 'support/bare-upload.ts'), folder], {
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  const [line] = (await once(bare.stdout, 'data')) as [Buffer]
  const bareUrl = String(line).trim()
  const service = await startService({
    TUNERY_MAX_DATASET_MB: String(megabytes * 2),
    TUNERY_MAX_DATASET_ROWS: '100000000',
  })
  try {
    const speeds = { bare: [] as number[], tunery: [] as number[] }
    let growth = 0
    for (let turn = 0; turn < turns; turn++) {
      settleDisk()
      speeds.bare.push(await upload(bareUrl, file, {}))
      settleDisk()
      const before = residentMb(service.pid)
      const watch = setInterval(() => {
        growth = Math.max(growth, residentMb(service.pid) - before)
      }, 20)
      speeds.tunery.push(await upload(`${service.url}/datasets/`, file, { authorization: `Bearer ${service.key}` }))
      clearInterval(watch)
      await service.idle()
      for (const { id } of (await service.api('GET', '/datasets/')).items)
        await service.api('DELETE', `/datasets/${id}`)
      console.log(
        `turn ${turn + 1}: bare ${speeds.bare.at(-1)!.toFixed(0)} MB/s, ` +
          `Tunery ${speeds.tunery.at(-1)!.toFixed(0)} MB/s, memory grew by ${growth.toFixed(0)} MB at most`,
      )
    }
    const share = median(speeds.tunery) / median(speeds.bare)
    console.log(
      `upload of ${megabytes} MB: Tunery ${median(speeds.tunery).toFixed(0)} MB/s, ` +
        `a bare server ${median(speeds.bare).toFixed(0)}: ${share.toFixed(2)}`,
    )
  } finally {
    bare.kill()
    await service.stop()
    rmSync(folder, { recursive: true, force: true })
  }
}

await main()
