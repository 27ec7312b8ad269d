// What a storage of objects can do, whichever it is, and the errors that all of them throw.
import { ApiError } from '../../../../contract/errors.ts'
import { storageAway } from '../durable-files.ts'

export interface StoredObject {
  size_bytes: number
  /** In hex. */
  sha256: string
}

export interface ListedObject {
  key: string
  size_bytes: number
  /** Unix milliseconds, by the storage's clock. */
  modified_at: number
}

/**
 * Objects under keys such as `datasets/ds_1.jsonl`, which never change. Every method throws an error with the code
 * `storageAway` while the storage cannot be used.
 */
export interface ObjectStore {
  /** The storage as the operator knows it, without secrets. */
  readonly name: string
  /** Uploads a file, unless the same bytes are there already. A broken upload resumes with the parts that are there. */
  put(file: string, key: string): Promise<StoredObject>
  /** Downloads to a new file and compares its SHA-256. Throws stored_object_damaged; then leaves no file behind. */
  get(key: string, file: string): Promise<StoredObject>
  head(key: string): Promise<StoredObject | undefined>
  /** All objects whose key begins with `prefix`, in no certain order. */
  list(prefix: string): AsyncIterable<ListedObject>
  remove(key: string): Promise<void>
  /** A URL by which anyone may download the object for an hour; undefined where the storage has none. */
  presign(key: string, filename: string): Promise<string | undefined>
  /** Removes what uploads left that were begun before this time (unix milliseconds) and never ended. */
  removeUnfinished(before: number): Promise<void>
  /** Resolves if the storage answers. */
  check(): Promise<void>
  close(): void
}

/** An error of the storage while it cannot be used; `storageError` makes a 503 of it. */
export const awayError = (name: string, cause: unknown): Error =>
  Object.assign(new Error(`the storage ${name} is away: ${messageOf(cause)}`, { cause }), { code: storageAway })

const messageOf = (cause: unknown): string => {
  const { name, message, code } = cause as { name?: string; message?: string; code?: string }
  return message || code || name || 'it does not answer'
}

/** The error for an object that is not what was stored. Permanent: work that needs it fails. */
export const damagedError = (key: string, what: string): ApiError =>
  new ApiError(
    'stored_object_damaged',
    `The object ${key} in the service's storage ${what}. The operator can bring it back from a backup; ` +
      "'./tunery check' lists all that is missing or damaged.",
    { details: { object: key } },
  )

export const missingError = (key: string): ApiError => damagedError(key, 'is missing')

export const hashError = (key: string, actual: string, expected: string): ApiError =>
  damagedError(key, `is damaged: its SHA-256 is ${actual}, not ${expected}`)

/** Throws for a key that is no path within the storage. */
export function assertKey(key: string): void {
  if (key === '' || /[\0\\]/.test(key) || key.split('/').some((part) => part === '' || part === '.' || part === '..'))
    throw new Error(`'${key}' is no key of an object`)
}
