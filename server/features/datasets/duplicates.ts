// Finds duplicate rows, and prompts with conflicting answers. More rows than one batch are compared on a worker thread:
// hashing and storing a row costs a third of its whole check.
import { hash } from 'node:crypto'
import { Worker } from 'node:worker_threads'
import { createRowComparison, type DuplicateReport, type RowBatch } from './row-comparison.ts'
import { type CanonicalMessage, textOf } from './row-message.ts'
import { isPicture } from './row-pictures.ts'

const batchBytes = 1 << 20
const batchRows = 8192
const maxInFlight = 8
const encoder = new TextEncoder()

interface DuplicateFinder {
  /**
   * `row` is its JSON, with hashes in the place of pictures. Prompts of rows with the same messages are compared; give
   * none for a row whose prompt has more than these.
   */
  add(line: number, row: Uint8Array, messages: CanonicalMessage[]): void
  /** Backpressure: resolves when few batches are in flight. */
  ready(): Promise<void>
  /** Ends the thread. */
  end(): Promise<DuplicateReport>
}

/**
 * What a message says, without the ids of its calls and with the hashes of its pictures. Never longer than the
 * message's JSON, with pictures as `withoutPictures` writes them.
 */
function comparable(message: CanonicalMessage): string {
  const calls = (message.tool_calls ?? []) as { function: { name: string; arguments: string } }[]
  const { content } = message
  const pictures = Array.isArray(content)
    ? content.filter(isPicture).map(({ image_url }) => hash('sha256', image_url.url))
    : []
  return [
    textOf(message),
    ...pictures,
    ...calls.flatMap(({ function: called }) => [called.name, called.arguments]),
  ].join('')
}

export function createDuplicateFinder(): DuplicateFinder {
  let worker: Worker | undefined
  let inFlight = 0
  let wake = () => {}
  let failure: Error | undefined
  let report: DuplicateReport | undefined
  let bytes = new Uint8Array(batchBytes)
  const ends = new Uint32Array(3 * batchRows)
  const lines = new Float64Array(batchRows)
  let used = 0
  let rows = 0

  function start(): Worker {
    const started = new Worker(new URL('./duplicates-thread.ts', import.meta.url))
    started.on('message', (message: 'done' | DuplicateReport) => {
      if (message === 'done') inFlight--
      else report = message
      wake()
    })
    started.on('error', (error) => {
      failure = error as Error
      wake()
    })
    return started
  }

  const takeBatch = (): RowBatch => ({
    bytes: bytes.slice(0, used),
    ends: ends.slice(0, 3 * rows),
    lines: lines.slice(0, rows),
  })

  function send() {
    if (rows === 0) return
    worker ??= start()
    const batch = takeBatch()
    inFlight++
    worker.postMessage(batch, [batch.bytes.buffer, batch.ends.buffer, batch.lines.buffer])
    used = 0
    rows = 0
  }

  function write(text: string) {
    used += encoder.encodeInto(text, bytes.subarray(used)).written
    // A separator: no UTF-8 text has this byte.
    bytes[used++] = 0xff
  }

  async function until(condition: () => boolean) {
    while (!failure && !condition())
      await new Promise<void>((resolve) => {
        wake = resolve
      })
    if (failure) throw failure
  }

  return {
    add(line, row, messages) {
      // The prompt and answer of a row are shorter than its JSON.
      const room = 2 * row.length
      if (used + room > bytes.length || rows === batchRows) send()
      if (room > bytes.length) bytes = new Uint8Array(room)
      bytes.set(row, used)
      used += row.length
      ends[3 * rows] = used
      const answer = messages.at(-1)
      if (answer && answer.weight !== 0 && messages.some(({ role }) => role === 'user')) {
        for (const message of messages.slice(0, -1)) {
          write(message.role)
          write(comparable(message))
        }
        ends[3 * rows + 1] = used
        write(comparable(answer))
      } else ends[3 * rows + 1] = used
      ends[3 * rows + 2] = used
      lines[rows] = line
      rows++
    },
    ready: () => until(() => inFlight < maxInFlight),
    async end() {
      if (!worker) {
        // Sooner done than a thread is started.
        const comparison = createRowComparison()
        comparison.add(takeBatch())
        return comparison.found
      }
      send()
      worker.postMessage('end')
      await until(() => report !== undefined)
      await worker.terminate()
      return report!
    },
  }
}
