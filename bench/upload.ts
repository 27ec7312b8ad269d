// Uploads 1 GB to the service and to a bare Node server that writes and hashes the same body: MB/s of both, and the
// service's memory growth. `npm run bench -- upload [MB] [turns]`
import { execFileSync, spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { closeSync, fsyncSync, mkdtempSync, openSync, rmSync, statSync, writeSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { residentMb } from './support/memory.ts'
import { startService } from './support/service.ts'
import { uploadFile } from './support/upload-file.ts'

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

/** MB a second. */
async function upload(url: string, file: string, headers: Record<string, string>): Promise<number> {
  const started = performance.now()
  await uploadFile(url, file, headers)
  return statSync(file).size / 1e6 / ((performance.now() - started) / 1000)
}

/** What bounds an upload, in MB/s: one core that hashes it, and a disk that it is written and synced to. */
function measureLimits(): { hashing: number; writing: number } {
  const piece = Buffer.alloc(1 << 20, 'rows')
  const pieces = 256
  const speed = (began: number) => (pieces * piece.length) / 1e6 / ((performance.now() - began) / 1000)
  const hash = createHash('sha256')
  const hashed = performance.now()
  for (let index = 0; index < pieces; index++) hash.update(piece)
  hash.digest()
  const hashing = speed(hashed)
  settleDisk()
  const fd = openSync(path.join(folder, 'limit.bin'), 'w')
  const written = performance.now()
  for (let index = 0; index < pieces; index++) writeSync(fd, piece)
  fsyncSync(fd)
  const writing = speed(written)
  closeSync(fd)
  return { hashing, writing }
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
    const [ours, theirs] = [median(speeds.tunery), median(speeds.bare)]
    const { hashing, writing } = measureLimits()
    console.log(
      `upload of ${megabytes} MB: Tunery ${ours.toFixed(0)} MB/s, a bare server ${theirs.toFixed(0)}: ` +
        `${(ours / theirs).toFixed(2)}`,
    )
    console.log(
      `this machine hashes ${hashing.toFixed(0)} MB/s (SHA-256, one core) and writes and syncs ` +
        `${writing.toFixed(0)}: Tunery ${(ours / Math.min(hashing, writing)).toFixed(2)} of the slower`,
    )
  } finally {
    bare.kill()
    await service.stop()
    rmSync(folder, { recursive: true, force: true })
  }
}

await main()
