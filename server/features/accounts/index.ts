// Accounts, members, API keys and the operator. What the rest of the service may import.
export { missingRights, requireStillGood } from './authority.ts'
export { toMemberResponse } from './members.ts'
export { Accounts } from './service.ts'
export { firstOwner, operatorUser } from './store.ts'
