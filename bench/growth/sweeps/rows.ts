// A dataset of more and more rows: upload, structural check, pages of rows.
import { rmSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { median } from '../../serving/job.ts'
import { watchMemory, watchResident } from '../../support/memory.ts'
import { startService } from '../../support/service.ts'
import { uploadFile } from '../../support/upload-file.ts'
import { numberedRow, secondsOf, writeRows } from '../support.ts'
import type { Sweep } from '../sweep.ts'

const linear = { most: 1.15 }

export const rows: Sweep = {
  name: 'rows',
  what: 'rows of a dataset',
  sizes: [1e3, 1e4, 1e5, 3e5, 1e6],
  large: [3e6, 1e7],
  plots: [
    {
      title: 'Time',
      measures: [
        { name: 'upload', unit: 's', bound: linear },
        { name: 'structural check', unit: 's', bound: linear },
        { name: 'last page of rows, first read', unit: 's', bound: linear },
        { name: 'last page of rows, read again', unit: 's', bound: { most: 0.3 } },
      ],
    },
    {
      title: 'Memory at its peak',
      measures: [
        { name: 'server', unit: 'MB', bound: { most: 0.15 } },
        { name: 'process of the check', unit: 'MB', bound: { most: 1 } },
      ],
    },
  ],
  async open() {
    const service = await startService({ TUNERY_MAX_DATASET_ROWS: '100000000', TUNERY_MAX_DATASET_MB: '100000' })
    const headers = { authorization: `Bearer ${service.key}` }
    const ready = async (id: string) => {
      while ((await service.api('GET', `/datasets/${id}`)).status === 'preparing') await sleep(5)
    }
    return {
      close: () => service.stop(),
      async at(size) {
        const file = writeRows(size, numberedRow)
        const server = watchResident(service.pid)
        const reader = watchMemory(service.pid)
        let id = ''
        const upload = await secondsOf(async () => {
          id = JSON.parse(await uploadFile(`${service.url}/datasets/`, file, headers)).id
        })
        const check = await secondsOf(() => ready(id))
        const check_mb = reader.end() / 1e6
        const page = () => secondsOf(() => service.api('GET', `/datasets/${id}/rows?limit=20&after=${size - 20}`))
        const firstPage = await page()
        const pages: number[] = []
        for (let turn = 0; turn < 9; turn++) pages.push(await page())
        rmSync(file)
        return {
          upload,
          'structural check': check,
          'last page of rows, first read': firstPage,
          'last page of rows, read again': median(pages),
          server: server.end(),
          'process of the check': check_mb,
        }
      },
    }
  },
}
