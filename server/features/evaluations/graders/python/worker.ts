// The thread of the sandbox that runs Python: CPython in WebAssembly (Pyodide). It gets nothing of this process.
import { readFileSync } from 'node:fs'
import { parentPort, workerData } from 'node:worker_threads'
import type { PythonRequest } from './messages.ts'
import { startPython } from './pyodide.ts'

type Call = (text: string) => string

/** Memory of Python, in MiB. */
const memory_mb = 256
const pageBytes = 65_536
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
port.on('message', (request: Exclude<PythonRequest, { interrupt: true }>) => {
  const { id } = request
  Atomics.store(interrupts, 0, 0)
  try {
    const reply = 'load' in request ? load(request.load) : grade(JSON.stringify(request.grade))
    port.postMessage({ id, ...JSON.parse(reply) })
  } catch (error) {
    // Python itself is broken, as by a stack that overflowed.
    port.postMessage({ fatal: String((error as Error)?.message).slice(0, 500) })
  }
})
closeRealm()
port.postMessage({ ready: true })
