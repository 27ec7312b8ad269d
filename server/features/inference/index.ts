// Inference: the API that answers requests, and how it is called from within. What the rest of the service may import.
export { askInBackground, backgroundOperations, TurnOver, yieldToOthers } from './background.ts'
export { type Aborts, createAborts } from './gateway/aborts.ts'
export { meterFullResponse, relayStream } from './gateway/relay.ts'
export { chat } from './gateway/routes.ts'
export { openSseResponse } from './gateway/sse-response.ts'
export { chatTool } from './responses/tools.ts'
export { responseFormat, thinksNot } from './responses/translate.ts'
export type { Inference } from './service.ts'
