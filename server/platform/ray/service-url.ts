// How machines of the cluster reach this service, where no setting says it.
import os from 'node:os'
import type { FastifyInstance } from 'fastify'

/** The address on which this server listens; of all addresses the first that other machines may reach. */
export function listeningUrl(app: FastifyInstance): string {
  const address = app.server.address()
  if (address === null || typeof address === 'string') throw new Error('the server does not listen yet')
  const everywhere = address.address === '0.0.0.0' || address.address === '::'
  const outside = Object.values(os.networkInterfaces())
    .flat()
    .find((network) => network && !network.internal && network.family === 'IPv4')?.address
  const host = everywhere ? (outside ?? '127.0.0.1') : address.address
  return `http://${host.includes(':') ? `[${host}]` : host}:${address.port}`
}
