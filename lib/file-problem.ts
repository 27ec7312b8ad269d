// Why a file cannot be used, in words. Node's own error for a folder names no file.
import { lstatSync } from 'node:fs'

/** Whether there is anything by this name, a link to nothing included. */
export function isThere(file: string): boolean {
  try {
    lstatSync(file)
    return true
  } catch {
    return false
  }
}

/** Continues a sentence that begins with the file: `is a folder, not a file`. */
export function fileProblem(file: string, error: unknown): string {
  const { code, message } = error as NodeJS.ErrnoException
  switch (code) {
    case 'EISDIR':
      return 'is a folder, not a file'
    case 'ENOENT':
      return isThere(file) ? 'is a link to a file that does not exist' : 'does not exist'
    case 'ELOOP':
      return 'is a link that leads to itself'
    case 'EACCES':
    case 'EPERM':
      return 'may not be read by the user that runs the service'
    default:
      return `cannot be read (${message})`
  }
}
