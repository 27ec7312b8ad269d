import { hash } from 'node:crypto'
import { parentPort } from 'node:worker_threads'
import type { Duplicates, RowBatch } from './duplicates.ts'
import { maxListed } from './rows.ts'

// 160 bits of a hash: two different rows that share one do not happen by themselves.
const seen = new Set<string>()
const found: Duplicates = { count: 0, lines: [] }

parentPort!.on('message', (message: RowBatch | 'end') => {
  if (message === 'end') return parentPort!.postMessage(found)
  let from = 0
  message.ends.forEach((end, index) => {
    const known = seen.size
    if (seen.add(hash('sha1', message.bytes.subarray(from, end), 'hex')).size === known) {
      found.count++
      if (found.lines.length < maxListed) found.lines.push(message.lines[index]!)
    }
    from = end
  })
  parentPort!.postMessage('done')
})
