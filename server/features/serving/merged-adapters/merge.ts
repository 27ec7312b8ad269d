// Merges an adapter with its base, in a separate process: its memory is freed afterwards, and it uses one thread.
import { mkdir } from 'node:fs/promises'
import path from 'node:path'
import { runToEnd } from '../../../../lib/child-process.ts'

const timeout_ms = 600_000
/** Exit status of the merge process for files that can never be merged. */
const notMergeable = 3

/** The adapter stays unmerged, because a retry would fail the same way. The message is for the log. */
export class MergeRejected extends Error {}

/**
 * Writes `out` atomically; `names` are those by which the engine reports base and adapter. Throws MergeRejected if the
 * files cannot be merged, another Error if a retry might help.
 */
export async function mergeFiles(
  python: string,
  base: string,
  adapter: string,
  out: string,
  names: [base: string, adapter: string],
  signal: AbortSignal,
): Promise<void> {
  await mkdir(path.dirname(out), { recursive: true, mode: 0o700 })
  const oneThread = { OMP_NUM_THREADS: '1', OPENBLAS_NUM_THREADS: '1', MKL_NUM_THREADS: '1' }
  const args = ['-m', 'trainer.cli.merge', base, adapter, out, ...names]
  const inTime = AbortSignal.any([signal, AbortSignal.timeout(timeout_ms)])
  const { status, killed_by, stderr } = await runToEnd(python, args, {
    env: { PATH: process.env.PATH, ...oneThread },
    signal: inTime,
  })
  if (status === notMergeable) throw new MergeRejected(stderr)
  if (status !== 0) throw new Error(`the merge ended with ${killed_by ?? status}: ${stderr.split('\n').at(-1)}`)
}
