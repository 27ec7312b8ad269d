// Which installation a data folder belongs to. The id in its file `installation` and the one in the database must
// agree: otherwise the sweeps of either would take the other's files for leftovers.
import {
  closeSync,
  existsSync,
  fsyncSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import path from 'node:path'
import type { Kysely } from 'kysely'
import { fileProblem, isThere } from '../../../lib/file-problem.ts'
import { type Admit, type Db, databaseFile } from '../db/open.ts'
import type { Schema } from '../db/schema.ts'
import type { OwnedFile } from './durable-files.ts'

/** Data folder, storage and database do not belong together. The message says what was found and what to do. */
export class WrongInstallation extends Error {}

/** The folders of the data folder whose entries rows name, and the journal of usage. */
const folders = [
  'batches',
  'datasets',
  'drafts',
  'exports',
  'files',
  'models',
  'runs',
  'tinker-checkpoints',
  'uploads',
  'usage',
]
/** The same, but those of unfinished work. */
const finishedFolders = ['datasets', 'drafts', 'exports', 'files', 'models', 'tinker-checkpoints']
const unfinished = /\.(part|upload|fetched|evicted)$/
const fileName = 'installation'

export const installationFile = (dataDir: string) => path.join(dataDir, fileName)

/** The id in the data folder; undefined if it has none, or one that was cut. Throws WrongInstallation if unreadable. */
export function readInstallation(dataDir: string): string | undefined {
  const file = installationFile(dataDir)
  if (!isThere(file)) return undefined
  try {
    return /^[0-9a-f]{12}$/.exec(readFileSync(file, 'utf8').trim())?.[0]
  } catch (error) {
    throw new WrongInstallation(
      `${file} ${fileProblem(file, error)}. It tells which installation the data folder belongs to. Nothing was ` +
        'changed. Put the file back as it was. If it is lost, move away what is there: the next start compares the ' +
        'folder with its database and writes the file again.',
    )
  }
}

/** The id in a database of any version; undefined in a new one, and in one that is older than these ids. */
export async function installationOf(db: Kysely<Schema>): Promise<string | undefined> {
  const row = await ignoreMissingTable(db.selectFrom('installation').select('id').limit(1).executeTakeFirst())
  return row?.id
}

/** The id of the first account, by which earlier versions named a storage. */
export const firstAccount = async (db: Kysely<Schema>): Promise<string | undefined> =>
  (await db.selectFrom('accounts').select('id').orderBy('created_at').orderBy('id').limit(1).executeTakeFirst())?.id

interface Place {
  data_dir: string
  database_url?: string | undefined
}

/**
 * Refuses a data folder with files before a new database is begun in it. The result refuses a database of another
 * installation: call it before the first write. Both throw WrongInstallation and change nothing.
 */
export function admission({ data_dir, database_url }: Place): Admit {
  const file = databaseFile(data_dir)
  const folder = readInstallation(data_dir)
  const content = contentOf(data_dir, folders)
  const owner = folder === undefined ? '' : ` of the installation ${folder}`
  const isNew = database_url === undefined && isEmpty(file)
  if (isNew && content.length > 0)
    throw new WrongInstallation(
      `The data folder ${data_dir} has files${owner} (${listed(content)}), but its database tunery.db is ` +
        `${existsSync(file) ? 'empty' : 'missing'}. ${beginElsewhere('TUNERY_DATA_DIR')}`,
    )
  return async (db) => {
    if (isNew) return
    const database = await installationOf(db)
    const hasAccounts = (await ignoreMissingTable(db.selectFrom('accounts').select('id').limit(1).execute()))?.length
    if (folder !== undefined && folder === database) return
    const name = database_url === undefined ? 'its database tunery.db' : 'the database of TUNERY_DATABASE_URL'
    const settings = `TUNERY_DATA_DIR${database_url === undefined ? '' : ' and TUNERY_DATABASE_URL'}`
    if (!hasAccounts) {
      if (content.length === 0) return
      throw new WrongInstallation(
        `The data folder ${data_dir} has files${owner} (${listed(content)}), but ${name} is empty. ` +
          beginElsewhere(settings),
      )
    }
    if (folder === undefined) return
    throw new WrongInstallation(
      `The data folder ${data_dir} belongs to the installation ${folder}, but ${name} to ` +
        `${database === undefined ? 'an older one' : `the installation ${database}`}. Nothing was changed. Set ` +
        `${settings} to what belongs together, or restore a backup into an empty folder ('./tunery restore'). If ` +
        `they do belong together, ${database === undefined ? 'remove' : `write ${database} into`} ` +
        `${installationFile(data_dir)}.`,
    )
  }
}

const beginElsewhere = (settings: string) =>
  `Nothing was changed. If a volume is not mounted or ${settings} names another place than before, set that right; ` +
  "if the database is lost, restore a backup into an empty folder ('./tunery restore'). A new installation begins in " +
  'a new folder.'

/**
 * Names the data folder after the installation, if it has no name yet, and returns the id. `files`: those that rows
 * name; with `shared` the folder is a cache, which may have anything. Otherwise throws WrongInstallation for a folder
 * that has other files than the rows name, or none of them.
 */
export async function claimFolder(
  db: Db,
  dataDir: string,
  { shared, files }: { shared: boolean; files(): Promise<OwnedFile[]> },
): Promise<string> {
  const id = await installationOf(db)
  if (id === undefined) throw new Error('the database names no installation')
  if (readInstallation(dataDir) === id) return id
  const named = await files()
  const required = named.filter((ownedFile) => ownedFile.required)
  const isThere = (file: OwnedFile) => existsSync(path.join(dataDir, file.path))
  if (!shared && !named.some(isThere)) {
    const way =
      'Nothing was changed. Set TUNERY_DATA_DIR to the folder of this database, or restore a backup. If they do ' +
      `belong together, write ${id} into ${installationFile(dataDir)}.`
    const content = contentOf(dataDir, finishedFolders)
    if (content.length > 0)
      throw new WrongInstallation(
        `The data folder ${dataDir} has files (${listed(content)}) that no row of its database names. ${way}`,
      )
    if (required.length > 0)
      throw new WrongInstallation(
        `The database names ${required.length} files, such as ${required[0]!.path} of ${required[0]!.owner}, but the ` +
          `data folder ${dataDir} has none of them. ${way}`,
      )
  }
  writeInstallation(dataDir, id)
  return id
}

/** Writes the id durably. */
function writeInstallation(dataDir: string, id: string): void {
  mkdirSync(dataDir, { recursive: true, mode: 0o700 })
  const part = `${installationFile(dataDir)}.part`
  writeFileSync(part, `${id}\n`, { mode: 0o600, flush: true })
  renameSync(part, installationFile(dataDir))
  const folder = openSync(dataDir, 'r')
  fsyncSync(folder)
  closeSync(folder)
}

/** Paths of what the folders have, at most one of each. */
const contentOf = (dataDir: string, within: string[]): string[] =>
  within.flatMap((folder) => {
    const names = existsSync(path.join(dataDir, folder)) ? readdirSync(path.join(dataDir, folder)) : []
    const first = names.sort().find((name) => !unfinished.test(name) && !name.startsWith('.') && name !== 'lost+found')
    return first === undefined ? [] : [`${folder}/${first}`]
  })

const listed = (content: string[]) => (content.length > 1 ? `${content[0]} and others` : content[0])

const isEmpty = (file: string) => (statSync(file, { throwIfNoEntry: false })?.size ?? 0) === 0

async function ignoreMissingTable<T>(work: Promise<T>): Promise<T | undefined> {
  try {
    return await work
  } catch (error) {
    const { code, message } = error as Error & { code?: string }
    if (code === '42P01' || /no such table/.test(message)) return undefined
    throw error
  }
}
