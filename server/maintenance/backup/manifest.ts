import { readFile, rename, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { z } from 'zod'
import { syncPath } from '../../platform/storage/durable-files.ts'

const name = 'manifest.json'

/** Allows only normalized paths of files that a data folder holds: a manifest must not write elsewhere. */
const FilePath = z
  .string()
  .refine(
    (text) =>
      path.posix.normalize(text) === text &&
      /^(tunery\.db$|(datasets|drafts|exports|files|models|runs|usage)\/)/.test(text) &&
      !/[\0\\]/.test(text),
  )

const Manifest = z.strictObject({
  format: z.literal('tunery-backup'),
  version: z.literal(1),
  created_at: z.iso.datetime(),
  tunery_version: z.string(),
  files: z.array(
    z.strictObject({ path: FilePath, size_bytes: z.int().min(0), sha256: z.string().regex(/^[0-9a-f]{64}$/) }),
  ),
})
export type Manifest = z.infer<typeof Manifest>

/** Writes the manifest. Call it after all its files are on disk: a backup with a manifest is complete. */
export async function writeManifest(folder: string, manifest: Manifest): Promise<void> {
  const part = path.join(folder, `${name}.part`)
  await writeFile(part, JSON.stringify(manifest, null, 2), { mode: 0o600 })
  await syncPath(part)
  await rename(part, path.join(folder, name))
  await syncPath(folder)
}

export async function readManifest(folder: string): Promise<Manifest> {
  let text: string
  try {
    text = await readFile(path.join(folder, name), 'utf8')
  } catch (error) {
    if (!['ENOENT', 'ENOTDIR'].includes((error as NodeJS.ErrnoException).code ?? '')) throw error
    throw new BackupError(`${folder} is not a complete backup: it has no ${name}, which is written last.`)
  }
  let manifest: Manifest
  try {
    manifest = Manifest.parse(JSON.parse(text))
  } catch {
    throw new BackupError(
      `The ${name} of ${folder} is damaged, or from a later version of Tunery. Nothing was restored.`,
    )
  }
  const paths = manifest.files.map((file) => file.path)
  if (!paths.includes('tunery.db') || new Set(paths).size < paths.length)
    throw new BackupError(`The ${name} of ${folder} is damaged. Nothing was restored.`)
  return manifest
}

/** Why a backup or restore failed, and what to do; for the operator. */
export class BackupError extends Error {}
