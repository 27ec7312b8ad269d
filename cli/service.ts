// Which service a command talks to, and one request to it.
import { existsSync, readFileSync } from 'node:fs'
import path from 'node:path'
import type { ErrorBody } from '../contract/errors.ts'
import { readConfig } from '../server/config.ts'
import { request, type ServiceAddress } from './download.ts'
import { UsageError } from './usage.ts'

/** The service of TUNERY_URL, or the one that runs on this machine's data folder. */
export function serviceAddress(): ServiceAddress {
  const { url, api_key, data_dir } = readConfig(process.env)
  if (!api_key)
    throw new UsageError("Set TUNERY_API_KEY to a key of the account; './tunery keys create --name cli' makes one.")
  const file = path.join(data_dir, 'server.json')
  if (!url && !existsSync(file))
    throw new UsageError(
      `No service runs on ${data_dir}. Start one with 'npm start', or set TUNERY_URL to the address of another, ` +
        'such as https://tunery.example.com/v1.',
    )
  return {
    url: (url ?? (JSON.parse(readFileSync(file, 'utf8')) as { url: string }).url).replace(/\/$/, ''),
    key: api_key,
  }
}

/** The JSON of a response. Throws a UsageError with the service's reason. */
export async function json<T>(service: ServiceAddress, method: string, route: string, body?: object): Promise<T> {
  const sent: RequestInit =
    body instanceof FormData
      ? { method, body }
      : { method, ...(body && { body: JSON.stringify(body), headers: { 'content-type': 'application/json' } }) }
  const response = await request(service, route, sent).catch((error: Error) => {
    throw new UsageError(
      `${service.url} cannot be reached: ${(error.cause as Error | undefined)?.message || error.message}.`,
    )
  })
  const answer = (await response.json().catch(() => {
    throw new UsageError(
      `${service.url} answered ${response.status} without JSON. ` +
        'TUNERY_URL is the address of a service with its version: https://…/v1.',
    )
  })) as T | ErrorBody
  if (!response.ok) throw new UsageError((answer as ErrorBody).error.message)
  return answer as T
}
