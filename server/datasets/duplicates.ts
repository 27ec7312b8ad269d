// Finds rows that stand in a file twice, and prompts that stand in it with two answers, on a thread of its own beside
// the one that parses: hashing and remembering a row costs a third of its whole check.
import { Worker } from 'node:worker_threads'

/**
 * Rows in one piece of memory, each followed by its prompt and its answer: where these three end, and the row's line.
 */
export interface RowBatch {
  bytes: Uint8Array<ArrayBuffer>
  ends: Uint32Array<ArrayBuffer>
  lines: Float64Array<ArrayBuffer>
}
interface Lines {
  count: number
  /** The first of them: each with the line that it is like. */
  lines: [line: number, first: number][]
}
/** Rows that stood in the file before, word for word; and those whose prompt did, with another answer. */
export interface Twins {
  duplicates: Lines
  conflicts: Lines
}
interface Message {
  role: string
  content: string
  weight?: number
}

const batchBytes = 1 << 20
const batchRows = 8192
const mostUnderWay = 8
const encoder = new TextEncoder()

export interface DuplicateFinder {
  add(line: number, row: Uint8Array, messages: Message[]): void
  /** Resolves when the thread is not far behind. */
  ready(): Promise<void>
  /** Ends the thread. */
  end(): Promise<Twins>
}

export function createDuplicateFinder(): DuplicateFinder {
  let worker: Worker | undefined
  let underWay = 0
  let wake = () => {}
  let failure: Error | undefined
  let found: Twins | undefined
  let bytes = new Uint8Array(batchBytes)
  const ends = new Uint32Array(3 * batchRows)
  const lines = new Float64Array(batchRows)
  let used = 0
  let rows = 0

  function start(): Worker {
    const started = new Worker(new URL('./duplicates-thread.ts', import.meta.url))
    started.on('message', (message: 'done' | Twins) => {
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
    const batch: RowBatch = { bytes: bytes.slice(0, used), ends: ends.slice(0, 3 * rows), lines: lines.slice(0, rows) }
    underWay++
    worker.postMessage(batch, [batch.bytes.buffer, batch.ends.buffer, batch.lines.buffer])
    used = 0
    rows = 0
  }

  function write(text: string) {
    used += encoder.encodeInto(text, bytes.subarray(used)).written
    // No byte of any text: what follows is another one.
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
      // The texts of a row are shorter than the row that they were read from.
      const room = 2 * row.length
      if (used + room > bytes.length || rows === batchRows) send()
      if (room > bytes.length) bytes = new Uint8Array(room)
      bytes.set(row, used)
      used += row.length
      ends[3 * rows] = used
      const answer = messages.at(-1)!
      if (answer.weight !== 0 && messages.some(({ role }) => role === 'user')) {
        for (const { role, content } of messages.slice(0, -1)) {
          write(role)
          write(content)
        }
        ends[3 * rows + 1] = used
        write(answer.content)
      } else ends[3 * rows + 1] = used
      ends[3 * rows + 2] = used
      lines[rows] = line
      rows++
    },
    ready: () => until(() => underWay < mostUnderWay),
    async end() {
      send()
      if (!worker) return { duplicates: { count: 0, lines: [] }, conflicts: { count: 0, lines: [] } }
      worker.postMessage('end')
      await until(() => found !== undefined)
      await worker.terminate()
      return found!
    },
  }
}
