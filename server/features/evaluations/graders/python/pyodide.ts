// Pyodide as the sandbox loads it, fresh or from a snapshot of its memory.
import { constants } from 'node:fs'
import { loadPyodide, type PyodideInterface } from 'pyodide'

/** Pyodide's experimental options: a snapshot is made of, and fits, one version alone. */
interface SnapshotOptions {
  _makeSnapshot?: true
  _loadSnapshot?: Uint8Array
}
export type Python = PyodideInterface & { makeMemorySnapshot(): Uint8Array }

const nothing = () => {}

/** Starts Python, in 5 s of processor time, or in half a second from a snapshot. */
export async function startPython(snapshot: SnapshotOptions = {}): Promise<Python> {
  // Pyodide asks for the numbers of flags by a call that Node's permissions refuse.
  Object.assign(process, { binding: () => ({ ...constants, fs: constants }) })
  const options = {
    env: { HOME: '/home/pyodide', PYTHONHASHSEED: '0' },
    jsglobals: Object.create(null),
    stdin: () => null,
    stdout: nothing,
    stderr: nothing,
    ...snapshot,
  }
  return (await loadPyodide(options)) as Python
}
