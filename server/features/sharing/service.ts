// Links by which people without an account see a model and ask it, within bounds. The token is random, and only its
// hash is stored. What no link may show answers as if the link did not exist.

import { createHash, randomBytes } from 'node:crypto'
import type { z } from 'zod'
import type { ListQuery } from '../../../contract/common.ts'
import { ApiError } from '../../../contract/errors.ts'
import type { TunedModelDetails } from '../../../contract/models.ts'
import {
  type CreateShare,
  type createShare,
  type Share,
  type SharedModel,
  sharedPromptTokensMax,
} from '../../../contract/sharing.ts'
import { newId } from '../../../lib/ids.ts'
import { endOfDay, isoTime, startOfDay } from '../../../lib/utc-day.ts'
import type { Db } from '../../platform/db/open.ts'
import { type Page, pageOf } from '../../platform/db/page.ts'
import { type AccountActor, recordAuditEntry } from '../../platform/events/audit.ts'
import { requireStillGood } from '../accounts/index.ts'
import type { Evaluations } from '../evaluations/index.ts'
import type { TunedModels } from '../models/index.ts'
import * as store from './store.ts'

const shares_max = 100

/** A link that works, and the tier of its account. */
export type LiveShare = NonNullable<Awaited<ReturnType<typeof store.findByHash>>>

export interface Sharing {
  create(
    by: AccountActor,
    model_id: string,
    request: CreateShare,
  ): Promise<z.input<(typeof createShare.responses)[201]>>
  list(account_id: string, model_id: string, query: ListQuery): Promise<Page<Share>>
  revoke(by: AccountActor, model_id: string, id: string): Promise<{ id: string; deleted: true }>
  /** Throws link_invalid for a link that does not work. */
  open(token: string): Promise<{ share: LiveShare; model: TunedModelDetails }>
  look(token: string): Promise<SharedModel>
  /** Those of these links that work now, by their id. */
  current(ids: string[]): Promise<Map<string, true>>
  /** Counts a request against the day's bound of the link. Throws rate_limit_exceeded. */
  countRequest(share: LiveShare): Promise<void>
}

interface Options {
  db: Db
  models: Pick<TunedModels, 'get'>
  evaluations: Pick<Evaluations, 'get' | 'result'>
  enabled: boolean
  /** Called after a link was withdrawn: answers in progress end. */
  announce(account_id: string): Promise<void>
  now(): number
}

export function createSharing({ db, models, evaluations, enabled, announce, now }: Options): Sharing {
  async function toResponse(row: store.ShareRow): Promise<Share> {
    const { id, model_id, evaluation_id, requests_per_day, max_tokens, expires_at, created_at } = row
    return {
      id,
      model_id,
      evaluation: evaluation_id,
      requests_per_day,
      max_tokens,
      requests_today: await store.requestsOn(db, id, startOfDay(now())),
      expires_at: isoTime(expires_at),
      created_at: isoTime(created_at),
    }
  }

  /** Throws if the evaluation has no result of this model. */
  async function requireEvaluation(account_id: string, model_id: string, id: string): Promise<void> {
    const evaluation = await evaluations.result(account_id, id)
    if (evaluation.status !== 'completed' || evaluation.model_id !== model_id)
      throw new ApiError(
        'invalid_request',
        `'evaluation': '${id}' is not a completed evaluation of the model '${model_id}'.`,
        { param: 'evaluation' },
      )
  }

  async function evaluationOf({ account_id, evaluation_id }: store.ShareRow): Promise<SharedModel['evaluation']> {
    if (evaluation_id === null) return null
    const evaluation = await evaluations.get(account_id, evaluation_id).catch((error) => {
      // Deleted since.
      if (error instanceof ApiError) return undefined
      throw error
    })
    if (!evaluation?.result) return null
    const { model, baseline, difference } = evaluation.result
    return {
      name: evaluation.name,
      rows: model.rows,
      score: model.score?.mean ?? null,
      pass_rate: model.pass_rate,
      baseline_score: baseline?.score?.mean ?? null,
      difference: difference && { mean: difference.mean, low: difference.low, high: difference.high },
      finished_at: evaluation.finished_at,
    }
  }

  const sharing: Sharing = {
    async create(by, model_id, { evaluation, expires_at, requests_per_day, max_tokens }) {
      if (!enabled)
        throw new ApiError(
          'insufficient_permissions',
          'Shared links are turned off on this service. Its operator turns them on with TUNERY_SHARE_LINKS=on.',
        )
      const { account_id } = by
      await models.get(account_id, model_id)
      if (evaluation != null) await requireEvaluation(account_id, model_id, evaluation)
      const time = now()
      const ends = expires_at == null ? null : Date.parse(expires_at)
      if (ends !== null && ends <= time)
        throw new ApiError('invalid_request', "'expires_at' is in the past.", { param: 'expires_at' })
      const token = randomBytes(32).toString('base64url')
      const share = {
        id: newId('shr'),
        account_id,
        model_id,
        evaluation_id: evaluation ?? null,
        hash: hashOf(token),
        requests_per_day,
        max_tokens,
        expires_at: ends,
        revoked_at: null,
        created_at: time,
      }
      await db.transaction().execute(async (trx) => {
        await requireStillGood(trx, by, time)
        if ((await store.countLive(trx, account_id)) >= shares_max)
          throw new ApiError('too_many', `This account has ${shares_max} shared links. Withdraw one first.`)
        await store.insert(trx, share)
        const details = { model_id, requests_per_day, max_tokens, expires_at: isoTime(ends) }
        await recordAuditEntry(trx, by, 'share.created', share.id, details, time)
      })
      return { ...(await toResponse(share)), link: `/share#${token}` }
    },

    async list(account_id, model_id, query) {
      await models.get(account_id, model_id)
      const after = query.after === undefined ? undefined : await requireShare(account_id, model_id, query.after)
      const rows = await store.list(db, account_id, model_id, query, after)
      return pageOf(await Promise.all(rows.map(toResponse)), query.limit)
    },

    async revoke(by, model_id, id) {
      await requireShare(by.account_id, model_id, id)
      await db.transaction().execute(async (trx) => {
        await store.revoke(trx, id, now())
        await recordAuditEntry(trx, by, 'share.withdrawn', id, { model_id }, now())
      })
      await announce(by.account_id)
      return { id, deleted: true }
    },

    async open(token) {
      const share = enabled ? await store.findByHash(db, hashOf(token), now()) : undefined
      if (!share) throw unknownLink()
      const model = await models.get(share.account_id, share.model_id).catch((error) => {
        throw error instanceof ApiError && error.status < 500 ? unknownLink() : error
      })
      return { share, model }
    },

    current: async (ids) => new Map((await store.liveIds(db, ids, now())).map(({ id }) => [id, true as const])),

    async look(token) {
      const { share, model } = await sharing.open(token)
      const used = await store.requestsOn(db, share.id, startOfDay(now()))
      return {
        name: model.name,
        description: model.description,
        base_model_id: model.base_model_id,
        evaluation: await evaluationOf(share),
        max_tokens: share.max_tokens,
        max_prompt_tokens: sharedPromptTokensMax,
        requests_left: Math.max(0, share.requests_per_day - used),
        resets_at: isoTime(endOfDay(now())),
      }
    },

    async countRequest({ id, requests_per_day }) {
      const time = now()
      const counted = await db
        .transaction()
        .execute((trx) => store.countRequest(trx, id, startOfDay(time), requests_per_day))
      if (!counted)
        throw busy(
          'share_requests_per_day',
          `This model was asked ${requests_per_day} times today, as often as its owner allows.`,
          Math.ceil((endOfDay(time) - time) / 1000),
        )
    },
  }

  async function requireShare(account_id: string, model_id: string, id: string): Promise<store.ShareRow> {
    const share = await store.find(db, account_id, model_id, id)
    if (!share) throw new ApiError('not_found', `There is no shared link '${id}' of the model '${model_id}'.`)
    return share
  }

  return sharing
}

const hashOf = (token: string) => createHash('sha256').update(token).digest('hex')

/** One error for links that never existed, ended, were withdrawn, or lead to something that is gone. */
export const unknownLink = () =>
  new ApiError('link_invalid', 'This link does not work: it was mistyped, withdrawn, or has expired.')

export const busy = (limit: string, message: string, retry_after_seconds: number) =>
  new ApiError('rate_limit_exceeded', `${message} Try again in ${retry_after_seconds} s.`, {
    details: { limit, retry_after_seconds },
  })
