// Links by which the files of a checkpoint in Hugging Face's form are fetched without a key: each is good for a while,
// and for one file.
import { createHmac, timingSafeEqual } from 'node:crypto'
import { readdir } from 'node:fs/promises'
import path from 'node:path'
import { ApiError } from '../../../contract/errors.ts'
import type { Db } from '../../platform/db/open.ts'
import type { SendableFile } from '../../platform/http/send-file.ts'
import { createFileHashes } from '../../platform/storage/durable-files.ts'
import type { Artifacts } from '../../platform/storage/objects/index.ts'
import type { Secrets } from '../../platform/storage/secrets.ts'
import type { Checkpoints } from './checkpoints.ts'
import { type CheckpointPath, checkpointNotFound, tinkerPath } from './names.ts'
import { checkpointKey, externalFolder } from './owned-files.ts'
import * as store from './store.ts'

/** How long a link is good. */
const link_ms = 60 * 60_000

interface Options {
  db: Db
  artifacts: Artifacts
  secrets: Pick<Secrets, 'derive'>
  checkpoints: Checkpoints
  now(): number
}

export class Downloads {
  private readonly options: Options
  private readonly hashed = createFileHashes()

  constructor(options: Options) {
    this.options = options
  }

  /** A link for each file. Throws not_found. */
  async urls(account_id: string, at: CheckpointPath, origin: string) {
    const { checkpoints, now } = this.options
    const row = await checkpoints.find(account_id, at)
    if (row.kind !== 'external') throw checkpointNotFound(tinkerPath(at.run_id, at.kind, at.name))
    const expires_at = now() + link_ms
    const names = await readdir(await this.folderOf(row.id))
    const urls = Object.fromEntries(
      names.sort().map((name) => {
        const token = `${row.id}.${expires_at}.${this.sign(row.id, name, expires_at)}`
        return [name, `${origin}/api/v1/tinker_files/${token}/${encodeURIComponent(name)}`]
      }),
    )
    return { urls, expires_at }
  }

  /** The file of a link. Throws not_found for one that is not good. */
  async file(token: string, name: string): Promise<SendableFile> {
    const { db, now } = this.options
    const missing = new ApiError(
      'not_found',
      'There is no such file, or this link has expired. Ask for the links again.',
    )
    const [id = '', expires = '', signature = ''] = token.split('.')
    const expected = this.sign(id, name, Number(expires))
    const isGood =
      signature.length === expected.length && timingSafeEqual(Buffer.from(signature), Buffer.from(expected))
    if (!isGood || Number(expires) < now() || !(await store.findCheckpointUnscoped(db, id))) throw missing
    const folder = await this.folderOf(id)
    const { sha256, size_bytes } = await this.hashed(path.join(folder, name)).catch(() => {
      throw missing
    })
    return { folder, name, size_bytes, sha256, missing }
  }

  private async folderOf(id: string): Promise<string> {
    return path.join(await this.options.artifacts.ensureLocal(checkpointKey(id)), externalFolder)
  }

  private sign(id: string, name: string, expires_at: number): string {
    const key = this.options.secrets.derive("links to files of Tinker's checkpoints")
    return createHmac('sha256', key).update(`${id}\n${expires_at}\n${name}`).digest('base64url')
  }
}
