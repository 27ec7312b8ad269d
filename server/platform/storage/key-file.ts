import { randomBytes } from 'node:crypto'
import { closeSync, fsyncSync, linkSync, mkdirSync, openSync, readFileSync, rmSync, writeSync } from 'node:fs'
import path from 'node:path'
import { fileProblem, isThere } from '../../../lib/file-problem.ts'
import { isFull } from './durable-files.ts'

/** The key file is missing where it is needed, damaged, or no file. The message says what to do. */
export class KeyUnusable extends Error {}

const key_bytes = 32

/**
 * Reads a 32-byte secret key; creates the file, readable by its owner only, if missing. Throws KeyUnusable if the file
 * is damaged, cannot be read, or cannot be made.
 */
export function readOrCreateKey(file: string): Buffer {
  if (!isThere(file)) create(file)
  const key = read(file)
  if (key.length !== key_bytes)
    throw new KeyUnusable(
      `The key file ${file} is damaged: it has ${key.length} bytes, not the ${key_bytes} that it was made with. Put ` +
        'your copy of it back, or set TUNERY_SECRET_KEY_FILE to that copy.',
    )
  return key
}

function read(file: string): Buffer {
  try {
    return readFileSync(file)
  } catch (error) {
    throw new KeyUnusable(
      `The key file ${file} ${fileProblem(file, error)}. Nothing was changed. Put your copy of the key there, or ` +
        'set TUNERY_SECRET_KEY_FILE to that copy. If there never was a key, move away what is there: the next start ' +
        'makes one.',
    )
  }
}

function create(file: string): void {
  try {
    write(file)
  } catch (error) {
    if (isFull(error)) throw error
    throw new KeyUnusable(
      `The key file ${file} cannot be made: ${(error as Error).message}. Set TUNERY_SECRET_KEY_FILE to a place that ` +
        'can be written.',
    )
  }
}

/** Creates the file atomically and syncs it before anything is encrypted with the key. */
function write(file: string): void {
  const folder = path.dirname(file)
  mkdirSync(folder, { recursive: true, mode: 0o700 })
  const temporary = `${file}.${process.pid}`
  const descriptor = openSync(temporary, 'w', 0o600)
  writeSync(descriptor, randomBytes(key_bytes))
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
