// A visitor's question to a shared model. It is metered to the account that shares, within that account's limits.
import type { FastifyReply, FastifyRequest } from 'fastify'
import { ApiError } from '../../../contract/errors.ts'
import { type SharedChat, sharedPromptTokensMax } from '../../../contract/sharing.ts'
import { type Limits, releaseAtEnd } from '../../platform/http/limits.ts'
import { answered } from '../../platform/http/mount.ts'
import type { RunningRequests } from '../../platform/http/running-requests.ts'
import {
  type Aborts,
  chat,
  type Inference,
  meterFullResponse,
  openSseResponse,
  relayStream,
  warningHeader,
} from '../inference/index.ts'
import { busy, type LiveShare, type Sharing, unknownLink } from './service.ts'

/** The name that answers carry. */
const shownName = 'shared'

interface Needs {
  running: RunningRequests
  sharing: Sharing
  inference: Pick<Inference, 'answer'>
  limits: Pick<Limits, 'acquireSlot' | 'countRequest'>
  aborts: Aborts
}

export function createSharedChat({ running, sharing, inference, limits, aborts }: Needs) {
  /** Links with an answer in progress: one at a time. */
  const active = new Set<string>()

  /** Takes the link's and the account's slot until the response has ended. Throws rate_limit_exceeded. */
  async function admit(share: LiveShare, reply: FastifyReply): Promise<void> {
    const { id } = share
    if (active.has(id)) throw busy('share_concurrent', 'Another question to this model is being answered.', 2)
    active.add(id)
    const release = await limits.acquireSlot(share).catch((error) => {
      active.delete(id)
      throw error
    })
    releaseAtEnd(reply, () => {
      active.delete(id)
      release?.()
    })
    const exhausted = () => busy('share_account', 'This model cannot be asked more just now.', 30)
    if (!release) throw exhausted()
    await sharing.countRequest(share)
    if (await limits.countRequest(share)) throw exhausted()
  }

  return async (
    { token, messages, stream }: SharedChat,
    request: FastifyRequest,
    reply: FastifyReply,
  ): Promise<typeof answered> => {
    const { share } = await sharing.open(token)
    await admit(share, reply)
    const { account_id, id, model_id, max_tokens } = share
    const judge = (current: true | undefined) => (current ? undefined : unknownLink())
    const signal = aborts.onEnd(reply, (end) => running.watch('share', id, judge, end))
    const isStream = stream === true
    const ask = () =>
      inference
        .answer(
          chat,
          {
            caller: { account_id, key_id: id },
            request_id: request.id,
            body: { model: model_id, messages, max_tokens, stream: isStream },
            text: undefined,
            stream: isStream,
            shown_name: shownName,
            prompt_tokens_max: sharedPromptTokensMax,
            warn: warningHeader(reply),
          },
          signal,
        )
        .catch(aborts.asReason(signal))
    if (!isStream) {
      const { response, meter } = await ask().catch((error) => {
        throw forVisitors(error)
      })
      reply.type('application/json; charset=utf-8').send(meterFullResponse(response, meter).bytes)
      return answered
    }
    const sseResponse = openSseResponse(reply)
    try {
      const { response, meter } = await ask()
      // Which weights answered is the account's own affair.
      await relayStream({ ...response, weights: undefined }, sseResponse, meter, {}, signal)
    } catch (error) {
      sseResponse.fail(forVisitors(error))
    }
    return answered
  }
}

/** Errors without names of the account: what is wrong with its model is not the visitor's affair. */
function forVisitors(error: unknown): unknown {
  if (!(error instanceof ApiError)) return error
  if (/^(model_|account_)/.test(error.code)) return unknownLink()
  if (error.status >= 500 && error.code !== 'overloaded' && error.code !== 'shutting_down')
    return new ApiError(error.code, 'The model cannot answer just now. Try again in a moment.')
  return error
}
