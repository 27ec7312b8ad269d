import { randomBytes } from 'node:crypto'
import { closeSync, fsyncSync, mkdirSync, openSync, readFileSync, writeSync } from 'node:fs'
import path from 'node:path'

/** The 32 secret bytes of a file; made, readable by its owner alone, where there is none. Throws where it holds anything else. */
export function keyOf(file: string): Buffer {
  try {
    mkdirSync(path.dirname(file), { recursive: true, mode: 0o700 })
    const made = openSync(file, 'wx', 0o600)
    writeSync(made, randomBytes(32))
    // What is encrypted with it may be on the disk before it is.
    fsyncSync(made)
    closeSync(made)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
  }
  const key = readFileSync(file)
  if (key.length !== 32) throw new Error(`${file} is damaged: it must hold the 32 bytes that it was made with. Restore it.`)
  return key
}
