// Converts a downloaded checkpoint to GGUF in a separate Python process, with the code of `./tunery models add`.
import { runToEnd } from '../../lib/child-process.ts'
import { DownloadFailed } from './checkpoint.ts'

/**
 * Reads `hf/` in `folder` and writes `model.gguf` and `model.json` next to it. Throws DownloadFailed if the conversion
 * fails.
 */
export async function convertCheckpoint(
  python: string,
  converters: string,
  model_id: string,
  folder: string,
  signal: AbortSignal,
): Promise<void> {
  const args = [
    '-m',
    'trainer.cli.prepare_download',
    '--repo',
    model_id,
    '--id',
    model_id,
    '--converters',
    converters,
    '--out',
    folder,
  ]
  const { status, killed_by, stderr } = await runToEnd(python, args, {
    env: { PATH: process.env.PATH, HF_HUB_OFFLINE: '1' },
    signal,
  })
  if (status === 0) return
  const why = killed_by === 'SIGKILL' ? 'the machine may have run out of memory' : (stderr.split('\n').at(-1) ?? '')
  throw new DownloadFailed(
    'conversion_failed',
    `The checkpoint of ${model_id} could not be converted (${killed_by ?? `status ${status}`}): ${why}`,
  )
}
