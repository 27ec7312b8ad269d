// The metrics of a process that listens on a unix socket, such as the engine.
import { get, type IncomingMessage } from 'node:http'
import { text } from 'node:stream/consumers'

export async function metricsOver(socketPath: string): Promise<string> {
  const response = await new Promise<IncomingMessage>((resolve, reject) =>
    get({ socketPath, path: '/metrics' }, resolve).on('error', reject),
  )
  return text(response)
}
