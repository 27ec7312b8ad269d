import { randomBytes } from 'node:crypto'
import { closeSync, fsyncSync, linkSync, mkdirSync, openSync, readFileSync, rmSync, writeSync } from 'node:fs'
import path from 'node:path'

/**
 * The 32 secret bytes of a file; made, readable by its owner alone, where there is none. Throws where it holds anything
 * else.
 */
export function keyOf(file: string): Buffer {
  try {
    return read(file)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
  }
  make(file)
  return read(file)
}

function read(file: string): Buffer {
  const key = readFileSync(file)
  if (key.length !== 32)
    throw new Error(`${file} is damaged: it must hold the 32 bytes that it was made with. Restore it.`)
  return key
}

/** Whole or not at all, and on the disk before anything that is encrypted with it. */
function make(file: string): void {
  const folder = path.dirname(file)
  mkdirSync(folder, { recursive: true, mode: 0o700 })
  const fresh = `${file}.${process.pid}`
  const written = openSync(fresh, 'w', 0o600)
  writeSync(written, randomBytes(32))
  fsyncSync(written)
  closeSync(written)
  try {
    linkSync(fresh, file)
  } catch (error) {
    // Another process was first: its key is the one.
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
  } finally {
    rmSync(fresh)
  }
  const entries = openSync(folder, 'r')
  fsyncSync(entries)
  closeSync(entries)
}
