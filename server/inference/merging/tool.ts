// Runs the merge of two files: a process of its own, whose memory goes with it and which leaves the cores to answers.
import { spawn } from 'node:child_process'
import { mkdir } from 'node:fs/promises'
import path from 'node:path'
import { root } from '../../config.ts'

const timeout_ms = 600_000
/** The two files do not make one, and will not the next time. */
const notMergeable = 3

/** Why an adapter stays as it is, for the log: trying again would change nothing. */
export class NotWorth extends Error {}

/** Writes `out` as a whole or not at all. Rejects with NotWorth where the two cannot be merged, with another Error where it may go well the next time. */
export async function mergeFiles(python: string, base: string, adapter: string, out: string, signal: AbortSignal): Promise<void> {
  await mkdir(path.dirname(out), { recursive: true, mode: 0o700 })
  const oneThread = { OMP_NUM_THREADS: '1', OPENBLAS_NUM_THREADS: '1', MKL_NUM_THREADS: '1' }
  // The pipe on its standard input stays open and empty: its end tells it that this server is gone.
  const child = spawn(python, ['-m', 'trainer.merge', base, adapter, out], {
    cwd: root,
    env: { PATH: process.env.PATH, ...oneThread },
    stdio: ['pipe', 'ignore', 'pipe'],
    signal: AbortSignal.any([signal, AbortSignal.timeout(timeout_ms)]),
    killSignal: 'SIGKILL',
  })
  child.stdin.on('error', () => {})
  let said = ''
  child.stderr.on('data', (data) => {
    said = (said + data).slice(-2000)
  })
  const [status, name] = await new Promise<[number | null, string | null]>((resolve, reject) => {
    let failure: Error | undefined
    child.on('error', (error) => {
      failure = error
      if (child.pid === undefined) reject(error)
    })
    child.on('close', (...how) => (failure ? reject(failure) : resolve(how)))
  })
  if (status === notMergeable) throw new NotWorth(said.trim())
  if (status !== 0) throw new Error(`the merge ended with ${name ?? status}: ${said.trim().split('\n').at(-1)}`)
}
