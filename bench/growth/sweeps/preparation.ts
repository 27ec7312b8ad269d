// A dataset of more and more rows: the count of their tokens, and the trainer's preparation before it loads the model.
import { execFileSync } from 'node:child_process'
import { rmSync } from 'node:fs'
import { watchMemory } from '../../support/memory.ts'
import { startService } from '../../support/service.ts'
import { uploadFile } from '../../support/upload-file.ts'
import { modelDir, numberedRow, python, root, secondsOf, writeRows } from '../support.ts'
import type { Sweep } from '../sweep.ts'

const linear = { most: 1.15 }

export const preparation: Sweep = {
  name: 'preparation',
  what: 'rows of a dataset',
  sizes: [1e3, 1e4, 3e4, 1e5, 1e6],
  large: [],
  plots: [
    {
      title: 'Time',
      measures: [
        { name: 'count of tokens', unit: 's', bound: linear },
        { name: "trainer's preparation", unit: 's', bound: linear },
      ],
    },
    {
      title: 'Memory at its peak',
      measures: [
        { name: 'process of the count', unit: 'MB', bound: { most: 0.15 } },
        { name: 'rows in the trainer', unit: 'MB', bound: linear },
      ],
    },
  ],
  async open() {
    const service = await startService({ TUNERY_MAX_DATASET_MB: '100000' })
    const headers = { authorization: `Bearer ${service.key}` }
    return {
      close: () => service.stop(),
      async at(size) {
        const file = writeRows(size, numberedRow)
        const { id } = JSON.parse(await uploadFile(`${service.url}/datasets/`, file, headers))
        // Waits until the file is checked.
        await service.api('GET', `/datasets/${id}/rows?limit=1`)
        const counter = watchMemory(service.pid)
        const count = await secondsOf(() => service.api('POST', `/datasets/${id}/validate`, {}))
        const count_mb = counter.end() / 1e6
        const output = execFileSync(python, ['-m', 'bench.growth.prepare', modelDir, file], {
          cwd: root,
          encoding: 'utf8',
        })
        rmSync(file)
        const prepared = JSON.parse(output) as { seconds: number; rows_mb: number }
        return {
          'count of tokens': count,
          "trainer's preparation": prepared.seconds,
          'process of the count': count_mb,
          'rows in the trainer': prepared.rows_mb,
        }
      },
    }
  },
}
