// The client library: every operation of the API, typed from the contract.
export { type FollowOptions, isTuneryError, Tunery } from './client.ts'
export { type ErrorDetails, TuneryConnectionError, TuneryError } from './errors.ts'
export type { Operations } from './generated/operations.ts'
export type * from './generated/types.ts'
export type { ClientOptions } from './http.ts'
export type {
  EventStream,
  FileInput,
  FileResponse,
  Page,
  PagePromise,
  RequestOptions,
  ResponseEvent,
} from './types.ts'
export {
  type DatasetFields,
  isUploadGone,
  type UploadOptions,
  type UploadProgress,
  type UploadState,
} from './upload.ts'
export { type VerifyOptions, verifyWebhook, type WebhookEvent, WebhookVerificationError } from './webhooks.ts'
