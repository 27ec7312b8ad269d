// For replicas in the cluster, below /internal: files of models, and the comparison with the training. A token for each
// deployment and model, no key.

import { createReadStream } from 'node:fs'
import { stat } from 'node:fs/promises'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { z } from 'zod'
import { bearerToken } from '../../../platform/http/auth.ts'
import type { Artifacts } from '../../../platform/storage/objects/index.ts'
import { sameSecret } from '../../../platform/storage/secrets.ts'
import type { ProbeCheck, Target } from '../../serving/index.ts'
import type { Applications } from './applications.ts'
import type { TargetFiles } from './target-files.ts'

interface Needs {
  applications: Pick<Applications, 'filesToken'>
  /** The target of a model that a deployment's account may call; undefined: there is no such deployment or model. */
  targetOf(deployment_id: string, model: string): Promise<Target | undefined>
  files: Pick<TargetFiles, 'find'>
  artifacts: Pick<Artifacts, 'hold'>
  probe: ProbeCheck
}

type Params = Record<'deployment' | 'model' | 'sha256', string>
const notServed = 'This deployment serves no such model or file any more.'

const ScoredRows = z.array(z.object({ logprobs: z.array(z.number().nullable()) })).max(16)
const Scores = z.object({ tuned: ScoredRows, origin: ScoredRows })

export function replicaRoutes(app: FastifyInstance, { applications, targetOf, files, artifacts, probe }: Needs): void {
  /** Before the body is read. */
  async function requireToken(request: FastifyRequest, reply: FastifyReply) {
    const { deployment, model } = request.params as Params
    const token = bearerToken(request) ?? ''
    if (!sameSecret(token, applications.filesToken(deployment, model)))
      return refuse(reply, 401, 'This is not the token of a replica.')
  }
  const path = '/internal/replicas/:deployment/:model'
  const options = { onRequest: requireToken }

  app.get(`${path}/files/:sha256`, options, async (request, reply) => {
    const { deployment, model, sha256 } = request.params as Params
    const target = await targetOf(deployment, model)
    const file = target && (await files.find(target, sha256))
    if (!file) return refuse(reply, 404, notServed)
    const hold = await artifacts.hold([file])
    reply.raw.once('close', () => hold.release())
    reply.header('content-length', (await stat(file)).size)
    return reply.type('application/octet-stream').send(createReadStream(file, { highWaterMark: 1 << 20 }))
  })

  app.get(`${path}/probe`, options, async (request, reply) => {
    const { deployment, model } = request.params as Params
    const target = await targetOf(deployment, model)
    return target ? { rows: await probe.rows(target) } : refuse(reply, 404, notServed)
  })

  app.post(`${path}/scores`, options, async (request, reply) => {
    const { deployment, model } = request.params as Params
    const scores = Scores.safeParse(request.body)
    if (!scores.success) return refuse(reply, 400, 'These are no scores.')
    const target = await targetOf(deployment, model)
    if (!target) return refuse(reply, 404, notServed)
    return { problem: await probe.judge(target, scores.data.tuned, scores.data.origin) }
  })
}

const refuse = (reply: FastifyReply, status: number, message: string) =>
  reply.status(status).send({ error: { message } })
