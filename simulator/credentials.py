"""The simulator's credentials. They are public: nothing but the simulator takes them."""

from typing import Final

ACCOUNT_SID: Final = "AC" + "51" * 16
AUTH_TOKEN: Final = "simulator-auth-token"
PREVIOUS_AUTH_TOKEN: Final = "simulator-auth-token-before"
MESSAGING_SERVICE_SID: Final = "MG" + "51" * 16
FROM_NUMBER: Final = "+15005550006"
FAST2SMS_API_KEY: Final = "simulator-fast2sms-key"
FAST2SMS_WEBHOOK_SECRET: Final = "simulator-fast2sms-webhook"
FCM_PROJECT: Final = "simulated"
FCM_TOKEN: Final = "simulated"
