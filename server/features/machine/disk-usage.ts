// What takes space in the data folder, by kind. Counted in the background, as a folder may have very many files.
import { lstat, opendir, statfs } from 'node:fs/promises'
import path from 'node:path'
import type { Logger } from 'pino'
import type { Machine } from '../../../contract/machine.ts'
import { isoTime } from '../../../lib/utc-day.ts'

interface DiskUsage {
  /** The file system as it is now, and the last count; starts another one if that is old. */
  read(): Promise<Omit<Machine['disk'], 'kept_free_bytes'>>
  /** Waits for the count in progress. */
  close(): Promise<void>
}

interface Options {
  dataDir: string
  /** The folder of base models. */
  modelsDir: string
  log: Logger
  /** Ends a count. */
  stopping: AbortSignal
  now(): number
}

const fresh_ms = 60_000

export function createDiskUsage({ dataDir, modelsDir, log, stopping, now }: Options): DiskUsage {
  let counted: { kinds: Map<string, number>; at: number } | undefined
  let counting: Promise<void> | undefined

  async function count(): Promise<void> {
    const kinds = new Map<string, number>()
    const seen = new Set<string>()
    /** Linked files count once: an export of a model may share its files. */
    async function add(kind: string, file: string): Promise<void> {
      stopping.throwIfAborted()
      const stats = await lstat(file).catch(() => undefined)
      if (!stats) return
      if (stats.isDirectory()) return eachIn(file, (entry) => add(kind, entry))
      if (stats.nlink > 1) {
        const id = `${stats.dev} ${stats.ino}`
        if (seen.has(id)) return
        seen.add(id)
      }
      kinds.set(kind, (kinds.get(kind) ?? 0) + stats.blocks * 512)
    }
    await eachIn(dataDir, (entry) => add(kindOf(path.basename(entry)), entry))
    if (path.relative(dataDir, modelsDir).startsWith('..')) await add('base models', modelsDir)
    counted = { kinds, at: now() }
  }

  return {
    async read() {
      if (!counting && !(counted && now() - counted.at < fresh_ms))
        counting = count()
          .catch((error) => {
            if (!stopping.aborted) log.warn({ err: error }, 'the disk usage could not be counted')
          })
          .finally(() => {
            counting = undefined
          })
      const { blocks, bavail, bsize } = await statfs(dataDir)
      const kinds = counted && [...counted.kinds].map(([kind, bytes]) => ({ kind, bytes }))
      return {
        total_bytes: blocks * bsize,
        free_bytes: bavail * bsize,
        kinds: kinds?.sort((a, b) => b.bytes - a.bytes) ?? null,
        counted_at: counted ? isoTime(counted.at) : null,
      }
    },
    async close() {
      await counting
    },
  }
}

/** Names of server/README.md, under "Files". */
const folders = [
  'datasets',
  'files',
  'uploads',
  'batches',
  'runs',
  'models',
  'exports',
  'merged',
  'usage',
  'tensorboard',
]
const kindOf = (name: string) => {
  // The draft files of models.
  if (name === 'drafts') return 'models'
  return folders.includes(name) ? name : name.startsWith('tunery.db') ? 'database' : 'other'
}

/** Calls `work` for each entry of a folder, one after the other; a folder that is gone has none. */
async function eachIn(folder: string, work: (entry: string) => Promise<void>): Promise<void> {
  const entries = await opendir(folder).catch(() => undefined)
  if (entries) for await (const { name } of entries) await work(path.join(folder, name))
}
