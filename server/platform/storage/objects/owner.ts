// Whose storage it is: its object `installation` and the id in the database must agree.
import { randomUUID } from 'node:crypto'
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { WrongInstallation } from '../installation.ts'
import type { ObjectStore } from './store.ts'

export const ownerKey = 'installation'
/** The folders that are the service's. Others in the same storage are left alone. */
export const ownFolders = [
  'batches/',
  'datasets/',
  'drafts/',
  'exports/',
  'files/',
  'models/',
  'runs/',
  'tinker-checkpoints/',
  'uploads/',
] as const
/** Objects that are looked at to tell whose they are. */
const looks_max = 1000

export interface Owner {
  /** The installation's id. */
  owner: string
  /** The id of the first account, by which earlier versions named a storage. */
  formerOwner?: string | undefined
  /** All keys that rows name. */
  live(): Promise<Set<string>>
}

interface Place {
  store: ObjectStore
  /** A folder for what passes through this machine. */
  staging: string
}

/**
 * Throws WrongInstallation for a storage of another installation. One without a name gets the id, unless it has objects
 * and rows name none of them.
 */
export async function claimStorage({ store, staging }: Place, { owner, formerOwner, live }: Owner): Promise<void> {
  const file = path.join(staging, randomUUID())
  await mkdir(staging, { recursive: true, mode: 0o700 })
  try {
    if (await store.head(ownerKey)) {
      await store.get(ownerKey, file)
      const holder = (await readFile(file, 'utf8')).trim()
      if (holder === owner || holder === formerOwner) return
      throw new WrongInstallation(
        `The storage ${store.name} belongs to the installation ${holder}, and the database to ${owner}. Nothing was ` +
          'changed. Set TUNERY_STORAGE_URL to the storage of this database; each installation needs its own prefix.',
      )
    }
    const other = await findForeign(store, live)
    if (other !== undefined)
      throw new WrongInstallation(
        `The storage ${store.name} has objects (${other}) that no row of the database names. Nothing was changed. ` +
          'Set TUNERY_STORAGE_URL to the storage of this database, or to an empty prefix.',
      )
    await writeFile(file, owner, { mode: 0o600 })
    await store.put(file, ownerKey)
  } finally {
    await rm(file, { force: true })
  }
}

/** A key, if the storage has some and the first of them have no rows. */
async function findForeign(store: ObjectStore, live: Owner['live']): Promise<string | undefined> {
  let foreign: string | undefined
  let looks = 0
  const named = await live()
  for (const folder of ownFolders)
    for await (const { key } of store.list(folder)) {
      if (isNamed(named, key)) return undefined
      foreign ??= key
      if (++looks === looks_max) return foreign
    }
  return foreign
}

/** Whether a row names the key, or a folder that it is in. */
export function isNamed(named: Set<string>, key: string): boolean {
  if (named.has(key)) return true
  for (let end = key.indexOf('/'); end >= 0; end = key.indexOf('/', end + 1))
    if (named.has(key.slice(0, end + 1))) return true
  return false
}
