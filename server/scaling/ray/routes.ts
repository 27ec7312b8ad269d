// Files of models for replicas in the cluster, below /internal: a token for each deployment and model, no key.
import { createReadStream } from 'node:fs'
import { stat } from 'node:fs/promises'
import type { FastifyInstance, FastifyReply } from 'fastify'
import type { Artifacts } from '../../storage/objects/index.ts'
import { sameSecret } from '../../storage/secrets.ts'
import type { Applications, TargetFile } from './applications.ts'

interface Needs {
  applications: Pick<Applications, 'filesToken'>
  /** The files of a model that a deployment's account may call; undefined: there is no such deployment or model. */
  filesFor(deployment_id: string, model: string): Promise<TargetFile[] | undefined>
  artifacts: Pick<Artifacts, 'hold'>
}

export function replicaRoutes(app: FastifyInstance, { applications, filesFor, artifacts }: Needs): void {
  app.get('/internal/replicas/:deployment/:model/files/:sha256', async (request, reply) => {
    const { deployment, model, sha256 } = request.params as Record<'deployment' | 'model' | 'sha256', string>
    const token = /^Bearer (\S+)$/.exec(request.headers.authorization ?? '')?.[1] ?? ''
    if (!sameSecret(token, applications.filesToken(deployment, model)))
      return refuse(reply, 401, 'This is not the token of a replica.')
    const file = (await filesFor(deployment, model))?.find((each) => each.sha256 === sha256)
    if (!file) return refuse(reply, 404, 'This deployment serves no such file any more.')
    const hold = await artifacts.hold([file.path])
    reply.raw.once('close', () => hold.release())
    reply.header('content-length', (await stat(file.path)).size)
    return reply.type('application/octet-stream').send(createReadStream(file.path, { highWaterMark: 1 << 20 }))
  })
}

const refuse = (reply: FastifyReply, status: number, message: string) =>
  reply.status(status).send({ error: { message } })
