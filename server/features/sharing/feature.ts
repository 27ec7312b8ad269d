import { chatWithShare, createShare, deleteShare, listShares, lookAtShare } from '../../../contract/sharing.ts'
import { mount } from '../../platform/http/mount.ts'
import type { Limits } from '../../platform/limits/index.ts'
import type { Evaluations } from '../evaluations/index.ts'
import type { Context, Feature } from '../feature.ts'
import { createAborts, type Inference } from '../inference/index.ts'
import type { TunedModels } from '../models/index.ts'
import { createSharedChat } from './chat.ts'
import { Sharing } from './service.ts'

interface Needs {
  models: TunedModels
  evaluations: Evaluations
  inference: Inference
  limits: Limits
}

export function createSharingFeature(
  { config, db, changes, running, stopDeadline, now }: Context,
  { models, evaluations, inference, limits }: Needs,
): Feature {
  const sharing = new Sharing({
    db,
    models,
    evaluations,
    enabled: config.share_links === 'on',
    announce: changes.announce,
    now,
  })
  running.define('share', (ids) => sharing.current(ids))
  return {
    mount(app) {
      const ask = createSharedChat({ running, sharing, inference, limits, aborts: createAborts(stopDeadline) })
      mount(app, createShare, ({ caller, params, body }) => sharing.create(caller, params.model_id, body))
      mount(app, listShares, ({ caller, params, query }) => sharing.list(caller.account_id, params.model_id, query))
      mount(app, deleteShare, ({ caller, params }) => sharing.revoke(caller, params.model_id, params.share_id))
      mount(app, lookAtShare, ({ body }) => sharing.look(body.token))
      mount(app, chatWithShare, ({ body, request, reply }) => ask(body, request, reply))
    },
  }
}
