// The snapshot from which sandboxes start: made once a process of the service, and read through a file without a name.
import { closeSync, mkdtempSync, openSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { runToEnd } from '../../../../../lib/child-process.ts'
import { root } from '../../../../../lib/root.ts'

export interface Snapshot {
  /** Leads to the file for other processes of this user. */
  path: string
  close(): void
}

const make_ms = 180_000
const memory_mb = 1000

/** Undefined where none can be made: sandboxes then start without, ten times as slowly. */
export async function makeSnapshot(): Promise<Snapshot | undefined> {
  let folder: string | undefined
  try {
    folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-python-'))
    const file = path.join(folder, 'memory')
    const args = ['--permission', `--allow-fs-read=${root}`, `--allow-fs-write=${folder}`]
    const { status } = await runToEnd(
      process.execPath,
      [...args, path.join(import.meta.dirname, 'make-snapshot.ts'), file],
      { env: { PATH: process.env.PATH, NODE_NO_WARNINGS: '1' }, limits: { max_ms: make_ms, max_memory_mb: memory_mb } },
    )
    if (status !== 0) return undefined
    const fd = openSync(file, 'r')
    return { path: `/proc/${process.pid}/fd/${fd}`, close: () => closeSync(fd) }
  } catch {
    return undefined
  } finally {
    if (folder) rmSync(folder, { recursive: true, force: true })
  }
}
