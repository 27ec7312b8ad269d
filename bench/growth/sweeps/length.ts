// Longer and longer rows: a training step with one row, and the checks of a file of one size in rows of that length.
import { execFileSync } from 'node:child_process'
import { readFileSync, rmSync, writeFileSync } from 'node:fs'
import { text } from '../../serving/prompts.ts'
import { startService } from '../../support/service.ts'
import { uploadFile } from '../../support/upload-file.ts'
import { modelDir, python, root, secondsOf, writeRows } from '../support.ts'
import type { Sweep } from '../sweep.ts'

/** Tokens of the file whose checks are timed. */
const fileTokens = 500_000
const checked = 'check of 500,000 tokens in such rows'

/** Steps of each training; the first is not counted. */
const steps = 3

export const length: Sweep = {
  name: 'length',
  what: 'tokens of a row',
  sizes: [128, 256, 512, 1024, 2048, 4096],
  large: [8192],
  plots: [
    {
      title: 'Time',
      measures: [
        { name: 'training step with one row', unit: 's', bound: { most: 1.6 } },
        { name: checked, unit: 's', bound: { most: 0.15 } },
      ],
    },
    { title: 'Memory at its peak', measures: [{ name: 'process of the trainer', unit: 'MB', bound: { most: 1.15 } }] },
  ],
  async open(threads) {
    const service = await startService()
    return {
      close: () => service.stop(),
      async at(size) {
        const rowText = (row: number): [string, string] => ['Go on.', text(size, row)]
        const file = writeRows(Math.ceil(fileTokens / size), rowText)
        const headers = { authorization: `Bearer ${service.key}` }
        const check = await secondsOf(async () => {
          const { id } = JSON.parse(await uploadFile(`${service.url}/datasets/`, file, headers))
          await service.api('POST', `/datasets/${id}/validate?max_length=${size}`, {})
        })
        const lines = readFileSync(file, 'utf8').split('\n')
        // All have one length, as each is cut there.
        writeFileSync(file, `${lines.slice(0, steps).join('\n')}\n`)
        const options = ['--steps', String(steps), '--batch', '1', '--max-length', String(size)]
        // The trainer takes as many threads as it has cores.
        const cores = ['-c', `0-${threads - 1}`, python]
        const output = execFileSync('taskset', [...cores, '-m', 'bench.training.ours', modelDir, file, ...options], {
          cwd: root,
          encoding: 'utf8',
        })
        rmSync(file)
        const trained = JSON.parse(output) as { seconds: number; peak_memory_mb: number }
        return {
          'training step with one row': trained.seconds / (steps - 1),
          [checked]: check,
          'process of the trainer': trained.peak_memory_mb,
        }
      },
    }
  },
}
