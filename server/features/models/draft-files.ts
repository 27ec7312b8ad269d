import { existsSync } from 'node:fs'
import type { Logger } from 'pino'
import type { Db, Trx } from '../../platform/db/open.ts'
import type { Artifacts } from '../../platform/storage/objects/index.ts'
import { draftsKey } from './artifacts.ts'
import * as store from './store.ts'

/**
 * Finds the file that the engine drafts a model's answers from; undefined if it has none, or it cannot be fetched now.
 * Also of a model that is about to be registered.
 */
export const createDraftFiles =
  (db: Db, artifacts: Artifacts, log: Logger) =>
  async (id: string): Promise<string | undefined> => {
    if (!id.startsWith('mdl_')) return undefined
    try {
      // A model that is compared before it is registered stays loaded.
      const hasDrafts = (await store.hasDrafts(db, id)) ?? existsSync(artifacts.pathOf(draftsKey(id)))
      return hasDrafts ? await artifacts.ensureLocal(draftsKey(id)) : undefined
    } catch (error) {
      log.warn({ err: error, model: id }, 'a draft file could not be fetched: the model answers without it')
      return undefined
    }
  }

/** Forgets the answers that a dataset taught, wherever they were copied to. Resolves with the keys of their files. */
export const forgetDraftFiles = async (trx: Trx, account_id: string, dataset_id: string): Promise<string[]> =>
  (await store.forgetDrafts(trx, account_id, dataset_id)).map(draftsKey)
