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

interface Options {
  db: Db
  models: Pick<TunedModels, 'get'>
  evaluations: Pick<Evaluations, 'get' | 'result'>
  enabled: boolean
  /** Called after a link was withdrawn: answers in progress end. */
  announce(account_id: string): Promise<void>
  now(): number
}

export class Sharing {
  private readonly options: Options

  constructor(options: Options) {
    this.options = options
  }

  async create(
    by: AccountActor,
    model_id: string,
    { evaluation, expires_at, requests_per_day, max_tokens }: CreateShare,
  ): Promise<z.input<(typeof createShare.responses)[201]>> {
    const { db, models, enabled, now } = this.options
    if (!enabled)
      throw new ApiError(
        'insufficient_permissions',
        'Shared links are turned off on this service. Its operator turns them on with TUNERY_SHARE_LINKS=on.',
      )
    const { account_id } = by
    await models.get(account_id, model_id)
    if (evaluation != null) await this.requireEvaluation(account_id, model_id, evaluation)
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
    return { ...(await this.toResponse(share)), link: `/share#${token}` }
  }

  async list(account_id: string, model_id: string, query: ListQuery): Promise<Page<Share>> {
    const { db, models } = this.options
    await models.get(account_id, model_id)
    const after = query.after === undefined ? undefined : await this.requireShare(account_id, model_id, query.after)
    const rows = await store.list(db, account_id, model_id, query, after)
    return pageOf(await Promise.all(rows.map((row) => this.toResponse(row))), query.limit)
  }

  async revoke(by: AccountActor, model_id: string, id: string): Promise<{ id: string; deleted: true }> {
    const { db, announce, now } = this.options
    await this.requireShare(by.account_id, model_id, id)
    await db.transaction().execute(async (trx) => {
      await store.revoke(trx, id, now())
      await recordAuditEntry(trx, by, 'share.withdrawn', id, { model_id }, now())
    })
    await announce(by.account_id)
    return { id, deleted: true }
  }

  /** Throws link_invalid for a link that does not work. */
  async open(token: string): Promise<{ share: LiveShare; model: TunedModelDetails }> {
    const { db, models, enabled, now } = this.options
    const share = enabled ? await store.findByHash(db, hashOf(token), now()) : undefined
    if (!share) throw unknownLink()
    const model = await models.get(share.account_id, share.model_id).catch((error) => {
      throw error instanceof ApiError && error.status < 500 ? unknownLink() : error
    })
    return { share, model }
  }

  /** Those of these links that work now, by their id. */
  async current(ids: string[]): Promise<Map<string, true>> {
    const { db, now } = this.options
    return new Map((await store.liveIds(db, ids, now())).map(({ id }) => [id, true as const]))
  }

  async look(token: string): Promise<SharedModel> {
    const { db, now } = this.options
    const { share, model } = await this.open(token)
    const used = await store.requestsOn(db, share.id, startOfDay(now()))
    return {
      name: model.name,
      description: model.description,
      base_model_id: model.base_model_id,
      evaluation: await this.evaluationOf(share),
      max_tokens: share.max_tokens,
      max_prompt_tokens: sharedPromptTokensMax,
      requests_left: Math.max(0, share.requests_per_day - used),
      resets_at: isoTime(endOfDay(now())),
    }
  }

  /** Counts a request against the day's bound of the link. Throws rate_limit_exceeded. */
  async countRequest({ id, requests_per_day }: LiveShare): Promise<void> {
    const { db, now } = this.options
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
  }

  private async toResponse(row: store.ShareRow): Promise<Share> {
    const { id, model_id, evaluation_id, requests_per_day, max_tokens, expires_at, created_at } = row
    return {
      id,
      model_id,
      evaluation: evaluation_id,
      requests_per_day,
      max_tokens,
      requests_today: await store.requestsOn(this.options.db, id, startOfDay(this.options.now())),
      expires_at: isoTime(expires_at),
      created_at: isoTime(created_at),
    }
  }

  /** Throws if the evaluation has no result of this model. */
  private async requireEvaluation(account_id: string, model_id: string, id: string): Promise<void> {
    const evaluation = await this.options.evaluations.result(account_id, id)
    if (evaluation.status !== 'completed' || evaluation.model_id !== model_id)
      throw new ApiError(
        'invalid_request',
        `'evaluation': '${id}' is not a completed evaluation of the model '${model_id}'.`,
        { param: 'evaluation' },
      )
  }

  private async evaluationOf({ account_id, evaluation_id }: store.ShareRow): Promise<SharedModel['evaluation']> {
    if (evaluation_id === null) return null
    const evaluation = await this.options.evaluations.get(account_id, evaluation_id).catch((error) => {
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

  private async requireShare(account_id: string, model_id: string, id: string): Promise<store.ShareRow> {
    const share = await store.find(this.options.db, account_id, model_id, id)
    if (!share) throw new ApiError('not_found', `There is no shared link '${id}' of the model '${model_id}'.`)
    return share
  }
}

const hashOf = (token: string) => createHash('sha256').update(token).digest('hex')

/** One error for links that never existed, ended, were withdrawn, or lead to something that is gone. */
export const unknownLink = () =>
  new ApiError('link_invalid', 'This link does not work: it was mistyped, withdrawn, or has expired.')

export const busy = (limit: string, message: string, retry_after_seconds: number) =>
  new ApiError('rate_limit_exceeded', `${message} Try again in ${retry_after_seconds} s.`, {
    details: { limit, retry_after_seconds },
  })
