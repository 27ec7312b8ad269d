// Copies artifacts between data folders and storages, each verified by its hash.
import { randomUUID } from 'node:crypto'
import { existsSync } from 'node:fs'
import { copyFile, mkdir, readdir, rm, stat } from 'node:fs/promises'
import path from 'node:path'
import pino from 'pino'
import type { Db } from '../../platform/db/open.ts'
import { hashFile, moveTree, syncPath } from '../../platform/storage/durable-files.ts'
import { type Artifacts, createArtifacts, type ObjectStore } from '../../platform/storage/objects/index.ts'
import { ownedFiles } from '../backup/files.ts'
import { MigrateError } from './error.ts'

/** A data folder, and the storage behind it if there is one. */
export interface FilesPlace {
  dataDir: string
  store?: ObjectStore | undefined
}

interface Artifact {
  key: string
  owner: string
  required: boolean
  /** The SHA-256 of files in it that rows know, by path relative to the data folder. */
  hashes: Map<string, string>
}

/** All artifacts of the rows, in a stable order. */
export async function listArtifacts(db: Db): Promise<Artifact[]> {
  const artifacts = new Map<string, Artifact>()
  for (const { key, path: file, owner, required, sha256 } of await ownedFiles(db)) {
    const artifact = artifacts.get(key) ?? { key, owner, required, hashes: new Map() }
    if (sha256) artifact.hashes.set(file, sha256)
    artifacts.set(key, artifact)
  }
  const parts = await db
    .selectFrom('upload_parts')
    .innerJoin('uploads', 'uploads.id', 'upload_parts.upload_id')
    .select(['upload_parts.id', 'upload_parts.upload_id'])
    .where('uploads.status', '=', 'pending')
    .execute()
  const batches = await db
    .selectFrom('batches')
    .select('id')
    .where('status', 'in', ['validating', 'in_progress', 'finalizing', 'cancelling'])
    .execute()
  for (const key of [
    ...parts.map(({ id, upload_id }) => `uploads/${upload_id}/${id}`),
    ...batches.map(({ id }) => `batches/${id}/`),
  ])
    artifacts.set(key, { key, owner: 'unfinished work', required: false, hashes: new Map() })
  return [...artifacts.values()]
}

const silent = pino({ level: 'silent' })
/** Without bounds: on a full disk a move must fail, not evict what it has moved because the source has it too. */
const artifactsOf = ({ dataDir, store }: FilesPlace): Artifacts =>
  createArtifacts({ dataDir, store, cache_mb: Infinity, min_free_mb: -Infinity, redirect: false, log: silent })

/** Copies what the target does not have yet. `scratch` is a folder for what passes through this machine. */
export async function copyArtifacts(
  artifacts: Artifact[],
  source: FilesPlace,
  target: FilesPlace,
  scratch: string,
  onProgress: (artifact: Artifact, bytes: number) => void,
): Promise<{ files: number; bytes: number }> {
  const from = artifactsOf({ dataDir: target.store ? scratch : target.dataDir, store: source.store })
  let files = 0
  let bytes = 0
  for (const artifact of artifacts) {
    const { key } = artifact
    // Where a whole copy lies on this machine: in the source's folder, in the scratch folder, or in the target's.
    const root = source.store ? (target.store ? scratch : target.dataDir) : source.dataDir
    const local = path.join(root, key).replace(/\/$/, '')
    if (source.store) await from.ensureLocal(key)
    if (!existsSync(local)) {
      if (!artifact.required) continue
      throw new MigrateError(
        `${key} of ${artifact.owner} is missing. Restore it from a backup, or delete what needs it, and run the same ` +
          'command again.',
      )
    }
    const wrong = await firstWrongFile(artifact, root)
    if (wrong !== undefined) {
      if (source.store) await rm(local, { recursive: true, force: true })
      throw new MigrateError(
        `${wrong} of ${artifact.owner} is not what was stored: its SHA-256 is different. Restore it from a backup, ` +
          'or delete what needs it, and run the same command again.',
      )
    }
    if (!source.store && !target.store) await copyLocal(local, path.join(target.dataDir, key), target.dataDir)
    if (target.store) await artifactsOf({ dataDir: root, store: target.store }).publish(key)
    const size = await sizeOf(local)
    files += size.files
    bytes += size.bytes
    if (source.store && target.store) await rm(local, { recursive: true, force: true })
    onProgress(artifact, size.bytes)
  }
  return { files, bytes }
}

/** The first file of an artifact that has another hash than its row says. */
async function firstWrongFile({ hashes }: Artifact, root: string): Promise<string | undefined> {
  for (const [file, sha256] of hashes)
    if ((await hashFile(path.join(root, file)).catch(() => 'missing')) !== sha256) return file
  return undefined
}

/** Copies a file or folder, compares the hashes, and gives it its name last. */
async function copyLocal(from: string, to: string, dataDir: string): Promise<void> {
  const target = to.replace(/\/$/, '')
  if (existsSync(target)) return
  const staging = path.join(dataDir, 'fetching', randomUUID())
  const part = path.join(staging, 'part')
  const isFolder = (await stat(from)).isDirectory()
  const names = isFolder
    ? (await readdir(from, { recursive: true, withFileTypes: true }))
        .filter((entry) => entry.isFile())
        .map((entry) => path.relative(from, path.join(entry.parentPath, entry.name)))
    : ['']
  try {
    await mkdir(isFolder ? part : staging, { recursive: true, mode: 0o700 })
    for (const name of names) {
      const file = path.join(part, name)
      await mkdir(path.dirname(file), { recursive: true, mode: 0o700 })
      await copyFile(path.join(from, name), file)
      await syncPath(file)
      if ((await hashFile(file)) !== (await hashFile(path.join(from, name))))
        throw new MigrateError(
          `${file} was not written as it was read: the disk fails. Nothing of the source was changed.`,
        )
    }
    await mkdir(path.dirname(target), { recursive: true, mode: 0o700 })
    await moveTree(part, target)
    await syncPath(path.dirname(target))
  } finally {
    await rm(staging, { recursive: true, force: true })
  }
}

async function sizeOf(target: string): Promise<{ files: number; bytes: number }> {
  const stats = await stat(target)
  if (!stats.isDirectory()) return { files: 1, bytes: stats.size }
  let files = 0
  let bytes = 0
  for (const entry of await readdir(target, { recursive: true, withFileTypes: true }))
    if (entry.isFile()) {
      files++
      bytes += (await stat(path.join(entry.parentPath, entry.name))).size
    }
  return { files, bytes }
}
