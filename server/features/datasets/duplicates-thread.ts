import { parentPort } from 'node:worker_threads'
import { createRowComparison, type RowBatch } from './row-comparison.ts'

const comparison = createRowComparison()

parentPort!.on('message', (message: RowBatch | 'end') => {
  if (message === 'end') return parentPort!.postMessage(comparison.found)
  comparison.add(message)
  parentPort!.postMessage('done')
})
