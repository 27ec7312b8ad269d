// Finds rows that stand in a file twice, on a thread of its own beside the one that parses: hashing and remembering a row costs a third
// of its whole check.
import { Worker } from 'node:worker_threads'

/** Rows in one piece of memory: where each ends, and its line. */
export interface RowBatch {
  bytes: Uint8Array<ArrayBuffer>
  ends: Uint32Array<ArrayBuffer>
  lines: Float64Array<ArrayBuffer>
}
/** How many rows stood in the file before, word for word, and the lines of the first of them. */
export interface Duplicates {
  count: number
  lines: number[]
}

const batchBytes = 1 << 20
const batchRows = 8192
const mostUnderWay = 8

export interface DuplicateFinder {
  add(line: number, row: Uint8Array): void
  /** Resolves when the thread is not far behind. */
  ready(): Promise<void>
  /** Ends the thread. */
  end(): Promise<Duplicates>
}

export function createDuplicateFinder(): DuplicateFinder {
  let worker: Worker | undefined
  let underWay = 0
  let wake = () => {}
  let failure: Error | undefined
  let found: Duplicates | undefined
  let bytes = new Uint8Array(batchBytes)
  const ends = new Uint32Array(batchRows)
  const lines = new Float64Array(batchRows)
  let used = 0
  let rows = 0

  function start(): Worker {
    const started = new Worker(new URL('./duplicates-thread.ts', import.meta.url))
    started.on('message', (message: 'done' | Duplicates) => {
      if (message === 'done') underWay--
      else found = message
      wake()
    })
    started.on('error', (error) => {
      failure = error as Error
      wake()
    })
    return started
  }

  function send() {
    if (rows === 0) return
    worker ??= start()
    const batch: RowBatch = { bytes: bytes.slice(0, used), ends: ends.slice(0, rows), lines: lines.slice(0, rows) }
    underWay++
    worker.postMessage(batch, [batch.bytes.buffer, batch.ends.buffer, batch.lines.buffer])
    used = 0
    rows = 0
  }

  async function until(condition: () => boolean) {
    while (!failure && !condition())
      await new Promise<void>((resolve) => {
        wake = resolve
      })
    if (failure) throw failure
  }

  return {
    add(line, row) {
      if (used + row.length > bytes.length || rows === batchRows) send()
      if (row.length > bytes.length) bytes = new Uint8Array(row.length)
      bytes.set(row, used)
      used += row.length
      ends[rows] = used
      lines[rows] = line
      rows++
    },
    ready: () => until(() => underWay < mostUnderWay),
    async end() {
      send()
      if (!worker) return { count: 0, lines: [] }
      worker.postMessage('end')
      await until(() => found !== undefined)
      await worker.terminate()
      return found!
    },
  }
}
