/** Where artifacts are kept beyond one machine: a bucket, or a folder that all machines mount. */
export type StorageTarget =
  | {
      kind: 's3'
      bucket: string
      /** In front of every key: empty, or with a slash at its end. */
      prefix: string
      endpoint?: string
      region?: string
      /** The endpoint by which clients reach the storage, if it is another one. */
      public_endpoint?: string
    }
  | { kind: 'file'; folder: string }

const forms = 's3://bucket/prefix?endpoint=https://…&region=… or file:///a/folder/that/all/machines/mount'
const endpoints = ['endpoint', 'public_endpoint'] as const

/** Parses a storage URL. Throws an Error whose message says what is wrong with it. */
export function parseStorageUrl(text: string): StorageTarget {
  if (!URL.canParse(text)) throw new Error(`is not a URL such as ${forms}`)
  const url = new URL(text)
  if (url.username || url.password)
    throw new Error('must not hold credentials: the AWS SDK reads AWS_ACCESS_KEY_ID, a profile or a role')
  if (url.protocol === 'file:') {
    const folder = decodeURIComponent(url.pathname).replace(/(?<=[^/])\/+$/, '')
    if (url.host || url.search || url.hash || /^\/*$/.test(folder))
      throw new Error(`is not a folder such as file:///srv/tunery`)
    return { kind: 'file', folder }
  }
  if (url.protocol !== 's3:' || !/^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$/.test(url.hostname) || url.port || url.hash)
    throw new Error(`is not ${forms}`)
  const prefix = decodeURIComponent(url.pathname).replace(/^\/+|(?<!\/)\/+$/g, '')
  if (prefix.split('/').some((part) => part === '.' || part === '..'))
    throw new Error("must not have '..' in its prefix")
  const target: StorageTarget = { kind: 's3', bucket: url.hostname, prefix: prefix && `${prefix}/` }
  for (const [name, value] of url.searchParams) {
    if (name === 'region') target.region = value
    else if (endpoints.includes(name as 'endpoint')) {
      if (!/^https?:\/\/[^/]+\/?$/.test(value)) throw new Error(`has an ${name} that is not http(s)://host[:port]`)
      target[name as 'endpoint'] = value.replace(/\/$/, '')
    } else throw new Error(`has the unknown option '${name}'; there are endpoint, public_endpoint and region`)
  }
  return target
}
