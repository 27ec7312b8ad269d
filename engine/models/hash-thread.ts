// Worker thread that hashes one file at a time.
import { createHash } from 'node:crypto'
import { closeSync, fstatSync, openSync, readSync } from 'node:fs'
import { parentPort } from 'node:worker_threads'
import { type HashJob, type HashResult, stampOf } from './file-hashes.ts'

const chunk = Buffer.allocUnsafe(1 << 20)

function hashOf({ path, stamp }: HashJob): string | null {
  const file = openSync(path, 'r')
  const isSame = () => stampOf(fstatSync(file, { bigint: true })) === stamp
  try {
    if (!isSame()) return null
    const hash = createHash('sha256')
    for (let read = readSync(file, chunk); read > 0; read = readSync(file, chunk)) hash.update(chunk.subarray(0, read))
    return isSame() ? hash.digest('hex') : null
  } finally {
    closeSync(file)
  }
}

parentPort!.on('message', (job: HashJob) => {
  let sha256: string | null = null
  try {
    sha256 = hashOf(job)
  } catch {
    // Removed or unreadable: the owner reports it as unknown.
  }
  parentPort!.postMessage({ sha256 } satisfies HashResult)
})
