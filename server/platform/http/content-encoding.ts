// Bodies with a Content-Encoding: gzip is decoded within the limit of the route, anything else is refused.
import { Transform } from 'node:stream'
import { createGunzip } from 'node:zlib'
import type { FastifyInstance } from 'fastify'
import { ApiError } from '../../../contract/errors.ts'

const bodyless = ['GET', 'HEAD', 'OPTIONS']

/**
 * Replaces the body of a request by its decoded one. Refuses with unsupported_media_type, body_too_large or
 * invalid_request.
 */
export function decodeBodies(app: FastifyInstance): void {
  app.addHook('preParsing', (request, _reply, payload, done) => {
    const encoding = request.headers['content-encoding']?.trim().toLowerCase() ?? ''
    if (encoding === '' || encoding === 'identity' || bodyless.includes(request.method)) return done(null, payload)
    const { config, bodyLimit = 0 } = request.routeOptions
    if (encoding !== 'gzip' || config.route?.consumes)
      return done(
        new ApiError(
          'unsupported_media_type',
          config.route?.consumes
            ? 'A form is read without Content-Encoding. Send it as it is; a file in it may be compressed.'
            : `Content-Encoding '${encoding.slice(0, 40)}' is not read here. Send the body with gzip, or as it is.`,
        ) as never,
      )
    const gunzip = createGunzip()
    const decoded = Object.assign(limitLength(bodyLimit), { receivedEncodedLength: 0 })
    const fail = (error: ApiError) => {
      payload.unpipe(gunzip)
      // What is left of the body is read, not decoded.
      payload.resume()
      gunzip.destroy()
      decoded.destroy(error)
    }
    payload.on('data', (chunk: Buffer) => {
      decoded.receivedEncodedLength += chunk.length
    })
    payload.once('error', () => fail(brokenBody('it is not whole')))
    gunzip.once('error', ({ message }) => fail(brokenBody(message)))
    decoded.once('error', (error) => fail(error as ApiError))
    payload.pipe(gunzip).pipe(decoded)
    done(null, decoded as never)
  })
}

const brokenBody = (reason: string) =>
  new ApiError('invalid_request', `The body cannot be decoded with gzip, which its Content-Encoding names: ${reason}.`)

/** Passes bytes through, and fails with body_too_large before it has passed more than `bytes_max`. */
function limitLength(bytes_max: number): Transform {
  let length = 0
  return new Transform({
    transform(chunk: Buffer, _encoding, passed) {
      length += chunk.length
      if (length <= bytes_max) return passed(null, chunk)
      passed(new ApiError('body_too_large', `The decoded body is larger than ${bytes_max} bytes.`))
    },
  })
}
