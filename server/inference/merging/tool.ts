// Runs the merge of two files: a process of its own, whose memory goes with it and which leaves the cores to answers.
import { mkdir } from 'node:fs/promises'
import path from 'node:path'
import { runToEnd } from '../../children.ts'

const timeout_ms = 600_000
/** The two files do not make one, and will not the next time. */
const notMergeable = 3

/** Why an adapter stays as it is, for the log: trying again would change nothing. */
export class NotWorth extends Error {}

/** Writes `out` as a whole or not at all. Rejects with NotWorth where the two cannot be merged, with another Error where it may go well the next time. */
export async function mergeFiles(python: string, base: string, adapter: string, out: string, signal: AbortSignal): Promise<void> {
  await mkdir(path.dirname(out), { recursive: true, mode: 0o700 })
  const oneThread = { OMP_NUM_THREADS: '1', OPENBLAS_NUM_THREADS: '1', MKL_NUM_THREADS: '1' }
  const args = ['-m', 'trainer.merge', base, adapter, out]
  const inTime = AbortSignal.any([signal, AbortSignal.timeout(timeout_ms)])
  const { status, killed_by, said } = await runToEnd(python, args, { PATH: process.env.PATH, ...oneThread }, inTime)
  if (status === notMergeable) throw new NotWorth(said)
  if (status !== 0) throw new Error(`the merge ended with ${killed_by ?? status}: ${said.split('\n').at(-1)}`)
}
