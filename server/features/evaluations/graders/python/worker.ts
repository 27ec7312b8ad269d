// The thread of the sandbox that runs Python: CPython in WebAssembly (Pyodide). It gets nothing of this process.
import { readFileSync } from 'node:fs'
import { parentPort, workerData } from 'node:worker_threads'
import type { CallRequest } from './messages.ts'
import { startPython } from './pyodide.ts'

type Call = (text: string) => string

/** Memory of Python, in MiB. */
const memory_mb = 256
const pageBytes = 65_536
/** `interrupts`: what interrupts Python, and the number of the call that runs, or ran last. */
const { interrupts, snapshot } = workerData as {
  interrupts: Int32Array<SharedArrayBuffer>
  snapshot: Uint8Array | undefined
}

/** Python's memory grows by this call alone. */
function limitMemory(): void {
  const { prototype } = WebAssembly.Memory
  const grow = prototype.grow
  prototype.grow = function (this: WebAssembly.Memory, pages) {
    if (this.buffer.byteLength + pages * pageBytes > memory_mb * 2 ** 20) throw new RangeError('out of memory')
    return grow.call(this, pages)
  }
}

/** Ways out of this thread, which a grader would look for if it got around the closed bridge. */
const waysOut = [
  'process',
  'global',
  'fetch',
  'WebSocket',
  'EventSource',
  'Request',
  'Response',
  'BroadcastChannel',
  'MessageChannel',
  'MessagePort',
  'navigator',
  'localStorage',
  'sessionStorage',
  'setImmediate',
]

function closeRealm(): void {
  for (const name of waysOut) Reflect.deleteProperty(globalThis, name)
  const nothing = () => {}
  globalThis.console = Object.assign(Object.create(null), {
    log: nothing,
    warn: nothing,
    error: nothing,
    info: nothing,
  })
}

async function start(): Promise<{ load: Call; grade: Call }> {
  limitMemory()
  const python = await startPython(snapshot ? { _loadSnapshot: snapshot } : {})
  python.setInterruptBuffer(interrupts)
  python.runPython(readFileSync(new URL('./driver.py', import.meta.url), 'utf8'))
  return { load: python.globals.get('load') as Call, grade: python.globals.get('grade') as Call }
}

const { load, grade } = await start()
const port = parentPort!

/** Runs one call, which an interrupt of its number ends. */
function run(id: number, call: () => string): void {
  Atomics.store(interrupts, 0, 0)
  Atomics.add(interrupts, 1, 1)
  const began = performance.now()
  const reply = JSON.parse(call())
  port.postMessage({ id, ms: performance.now() - began, ...reply })
}

port.on('message', (request: CallRequest) => {
  const { id } = request
  try {
    if ('load' in request) run(id, () => load(request.load))
    else for (const values of request.grade) run(id, () => grade(values))
  } catch (error) {
    // Python itself is broken, as by a stack that overflowed.
    port.postMessage({ fatal: String((error as Error)?.message).slice(0, 500) })
  }
})
closeRealm()
port.postMessage({ ready: true })
