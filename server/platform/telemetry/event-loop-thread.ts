// Sees what blocks the main thread: when its beat stays away it looks at its stack through the inspector, which
// interrupts JavaScript wherever it is, regular expressions included.
import { readFileSync } from 'node:fs'
import { type Debugger, Session } from 'node:inspector'
import { fileURLToPath } from 'node:url'
import { parentPort, workerData } from 'node:worker_threads'
import { root } from '../../../lib/root.ts'
import type { Frame } from './event-loop.ts'

const { beats, blocked_ms_min } = workerData as { beats: Int32Array; blocked_ms_min: number }
/** A look takes the main thread 20 to 50 ms. */
const rest_ms = 5000
/** A main thread that does not run waits for the processor, which a look would make worse, or for a file. */
const waiting_ms_min = 1000

let beat = -1
let beat_at = performance.now()
let cpu_ms: number | undefined
let looked_at = Number.NEGATIVE_INFINITY

function check() {
  const now = performance.now()
  const latest = Atomics.load(beats, 0)
  if (latest !== beat) {
    beat = latest
    beat_at = now
    cpu_ms = undefined
    return
  }
  const blocked_ms = now - beat_at
  // Two looks come to one beat: only one that stays away is a reason to read.
  if (blocked_ms < blocked_ms_min / 2) return
  cpu_ms ??= mainCpuMs()
  if (blocked_ms < blocked_ms_min || now - looked_at < rest_ms) return
  if (blocked_ms < waiting_ms_min && mainCpuMs() - cpu_ms < blocked_ms / 4) return
  looked_at = now
  look()
}

/** The main thread says when it beats. */
let checking: NodeJS.Timeout | undefined
parentPort!.on('message', (message: 'wake' | 'sleep') => {
  clearInterval(checking)
  checking = undefined
  if (message === 'sleep') return
  beat_at = performance.now()
  cpu_ms = undefined
  checking = setInterval(check, blocked_ms_min / 2)
})

/** CPU time of the main thread; without /proc, always more than before. */
function mainCpuMs(): number {
  try {
    const stat = readFileSync(`/proc/self/task/${process.pid}/stat`, 'utf8')
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
    return 10 * (Number(fields[11]) + Number(fields[12]))
  } catch {
    return performance.now()
  }
}

function look(): void {
  const session = new Session()
  session.connectToMainThread()
  const scripts = new Map<string, string>()
  session.on('Debugger.scriptParsed', ({ params: { scriptId, url } }) => void scripts.set(scriptId, url))
  session.on('Debugger.paused', ({ params: { callFrames } }) => {
    // First: each moment here is one of the main thread.
    session.post('Debugger.resume')
    session.post('Debugger.disable', () => session.disconnect())
    parentPort!.postMessage(callFrames.map((frame) => frameOf(frame, scripts)))
  })
  session.post('Debugger.enable')
  session.post('Debugger.pause')
}

function frameOf({ functionName, location }: Debugger.CallFrame, scripts: Map<string, string>): Frame {
  const url = scripts.get(location.scriptId) ?? ''
  const file = url.startsWith('file:') ? fileURLToPath(url).replace(`${root}/`, '') : url
  return { name: functionName, file, line: location.lineNumber + 1 }
}
