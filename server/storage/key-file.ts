import { randomBytes } from 'node:crypto'
import { closeSync, fsyncSync, linkSync, mkdirSync, openSync, readFileSync, rmSync, writeSync } from 'node:fs'
import path from 'node:path'

/** Reads a 32-byte secret key; creates the file, readable by its owner only, if missing. Throws for other content. */
export function readOrCreateKey(file: string): Buffer {
  try {
    return read(file)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
  }
  create(file)
  return read(file)
}

function read(file: string): Buffer {
  const key = readFileSync(file)
  if (key.length !== 32)
    throw new Error(`${file} is damaged: it must hold the 32 bytes that it was made with. Restore it.`)
  return key
}

/** Creates the file atomically and syncs it before anything is encrypted with the key. */
function create(file: string): void {
  const folder = path.dirname(file)
  mkdirSync(folder, { recursive: true, mode: 0o700 })
  const temporary = `${file}.${process.pid}`
  const descriptor = openSync(temporary, 'w', 0o600)
  writeSync(descriptor, randomBytes(32))
  fsyncSync(descriptor)
  closeSync(descriptor)
  try {
    linkSync(temporary, file)
  } catch (error) {
    // Another process created it first: use that key.
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
  } finally {
    rmSync(temporary)
  }
  const folderDescriptor = openSync(folder, 'r')
  fsyncSync(folderDescriptor)
  closeSync(folderDescriptor)
}
